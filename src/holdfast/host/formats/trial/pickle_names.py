"""Which classes and functions a pickle may name and be loaded, and which are there to run code."""

from __future__ import annotations

_DTYPES = (
    "bool bfloat16 float16 float32 float64 float4_e2m1fn_x2 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex32 complex64 complex128 qint8 qint32 "
    "quint8 quint4x2 quint2x4 per_tensor_affine per_channel_affine per_channel_affine_float_qparams strided sparse_coo"
)
_KINDS = (
    "Float Double Half BFloat16 Long Int Short Char Byte Bool ComplexFloat ComplexDouble QInt8 QInt32 QUInt8 QUInt4x2 "
    "QUInt2x4"
)
_PLAIN = "list dict set frozenset tuple int float complex bytes bytearray str bool range slice object"
_OTHERS = """
__builtin__.unicode __builtin__.long __builtin__.xrange _codecs.encode argparse.Namespace array.array
array._array_reconstructor collections.Counter collections.OrderedDict collections.defaultdict collections.deque
copy_reg._reconstructor copyreg._reconstructor copyreg.__newobj__ datetime.date datetime.datetime datetime.time
datetime.timedelta datetime.timezone decimal.Decimal fractions.Fraction pathlib.Path pathlib.PosixPath
pathlib.PurePosixPath pathlib.PureWindowsPath pathlib.WindowsPath pathlib._local.PosixPath pathlib._local.WindowsPath
random.Random types.SimpleNamespace uuid.UUID uuid.SafeUUID
lightning.fabric.utilities.data.AttributeDict lightning_fabric.utilities.data.AttributeDict
pytorch_lightning.utilities.parsing.AttributeDict
numpy.dtype numpy.ndarray numpy.random._pickle.__randomstate_ctor numpy.random._pickle.__generator_ctor
numpy.random._pickle.__bit_generator_ctor numpy.random._mt19937.MT19937 numpy.random._pcg64.PCG64
numpy.random._pcg64.PCG64DXSM numpy.random._philox.Philox numpy.random._sfc64.SFC64
numpy.random.bit_generator.SeedSequence numpy.random.bit_generator.__pyx_unpickle_SeedSequence
torch.Size torch.Tensor torch.device torch.nn.parameter.Parameter torch.serialization._get_layout
torch.storage.TypedStorage torch.storage.UntypedStorage torch.storage._load_from_bytes
torch._tensor._rebuild_from_type_v2 torch._utils._rebuild_tensor_v3
torch._utils._rebuild_meta_tensor_no_storage torch._utils._rebuild_nested_tensor torch._utils._rebuild_parameter
torch._utils._rebuild_parameter_with_state torch._utils._rebuild_qtensor torch._utils._rebuild_sparse_tensor
torch._utils._rebuild_tensor torch._utils._rebuild_tensor_v2
torch._utils._rebuild_device_tensor_from_cpu_tensor torch._utils._rebuild_device_tensor_from_numpy
"""
ALLOWED = frozenset(
    [
        *_OTHERS.split(),
        *(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in _PLAIN.split()),
        *(f"torch.{name}" for name in _DTYPES.split()),
        *(
            f"torch.{where}{kind}{what}"
            for where in ("", "cuda.")
            for kind in _KINDS.split()
            for what in ("Storage", "Tensor")
        ),
        *(
            f"numpy.{core}.{name}"
            for core in ("core", "_core")
            for name in ("multiarray._reconstruct", "multiarray.scalar", "numeric._frombuffer")
        ),
        *(f"numpy.{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        *(f"numpy.{name}" for name in ("float16", "float32", "float64", "complex64", "complex128", "bool", "bool_")),
    ]
)
"""What a pickle may name and be loaded: constructors of plain values, tensors and arrays, which run no code
of somebody's choice. Sources: torch/_weights_only_unpickler.py (`_get_allowed_globals`), and `__reduce__` of numpy and
the standard library; `_load_from_bytes` is looked into (`pickles.Pickle.nested`)."""
_MODULES = (
    "os posix nt subprocess sys runpy importlib socket shutil ctypes pty code codeop webbrowser pip commands "
    "_posixsubprocess"
)
_NAMES = (
    "eval exec execfile compile open __import__ getattr setattr breakpoint system popen runstring exec_command "
    "methodcaller attrgetter FunctionType CodeType loads"
)
_RUNS_CODE, _CALLS = frozenset(_MODULES.split()), frozenset(_NAMES.split())


def is_dangerous(name: str) -> bool:
    """Whether nothing but code of somebody's choice is in question; `torch.serialization.os.system` is `os.system`."""
    first, *rest = name.split(".")
    if name in ALLOWED:
        return False
    return first in _RUNS_CODE or (bool(rest) and rest[-1] in _CALLS)
