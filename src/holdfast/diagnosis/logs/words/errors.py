"""What the name of an exception and the text of an error say by themselves, whatever library or language it is of.

Data only. The first entry that matches counts: what lasts stands before what may pass, the special before the general.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.pattern import compile_later
from holdfast.model.verdict import FailureClass

from .locales import STRERROR

if TYPE_CHECKING:
    import re

_ENVIRONMENT = FailureClass.ENVIRONMENT

DAMAGED_NAMES = compile_later(
    r"DataLoss|Corrupt|Truncated|Checksum|BadZip|BadGzip|UnidentifiedImage|DecompressionError"
    r"|^zlib\.error$|^(?:_?lzma)\.LZMAError$"
)
DAMAGED_TEXTS = compile_later(
    r"(?i)\b(?:file|disk|image|archive|database|checkpoint|shard)s?\b.{0,60}"
    r"\b(?:corrupt(?:ed)?|malformed|truncated|damaged|incomplete)\b"
    r"|\bcorrupt(?:ed)? (?:record|file|image|header|data|block|chunk|archive|stream)|\bchecksums? (?:mismatch"
    r"|error|fail|did not match)"
    r"|\bcrc (?:mismatch|error|check failed)|\bunexpected (?:eof|end of (?:file|data|stream))\b|\bbad magic\b"
    r"|\bnot a (?:zip|gzip|gzipped|parquet|valid (?:hdf5|zip|image|parquet|checkpoint)) file\b"
    r"|\bfile is empty\b|\b(?:error|fail\w*)\b.{0,30}\bdecompress|\bdecompress\w*\b.{0,20}\b(?:error|fail)"
    r"|\bempty file\b"
)
"""Data that cannot be read as what they should be, by the name of an exception and by a text."""
OF_A_DISK = compile_later(r"(?i)(?<![/\w.-])(?:disk(?! image)|file ?system)s?\b")
"""What is damaged is what files lie on."""

NAMES: tuple[tuple[re.Pattern[str], FailureClass], ...] = (
    (
        compile_later(
            r"^ray\.\S*OutOfMemory|^java\.\S*OutOfMemory|HostMemory|ObjectStoreFull"
            r"|(?<!OutOf)(?<!Cuda)(?<!CUDA)(?<!Device)MemoryError$"
        ),
        FailureClass.OUT_OF_MEMORY,
    ),
    (
        compile_later(
            r"Authenticat|Authori[sz]|Unauthori[sz]ed|Unauthenticated|Forbidden|PermissionDenied|AccessDenied"
            r"|Credential"
            r"|GatedRepo|(?:Token|Certificate)Expired|Expired(?:Token|Certificate)|\bauth\.exceptions\."
            r"|(?:Repository|Revision|Entry|Dataset|Bucket|Distribution|Package|Library|Driver|File|Class|Module"
            r"|Command"
            r"|Program|Executable|Resource|Environment|Device|Path|Blob|Object|Table|Secret|Image)\w{0,8}NotFound"
            r"|NoSuch(?:Bucket|Kernel|Device|Display|File|Host|Module|Driver|ObjectError)|NoClassDef|NoSuchMethodError"
            r"|UnsatisfiedLink|UnsupportedClassVersion|UnknownHost|NoDevice|NoCuda|NoGPU|NoDisplay"
            r"|OfflineMode|SSL(?:EOF|ZeroReturn)?Error|SSLCert|SSLHandshake|CertificateError|ProxyError|InvalidURL|MissingSchema"
            r"|UnknownService"
            r"|Version(?:Conflict|Mismatch|Error)|CUDAMismatch|RuntimeEnvSetup|LoginRequired|ApiKey|APIKey"
            r"|(?:Missing|Optional)Dependency|Dependency(?:Missing|Conflict|Error)|Requirement|Unsatisfiable|BuildError"
            r"|Unsupported(?:CUDA|Driver|Arch|Platform|Python)\w*|LinkerError|ToolchainError|CompilerNotFound"
            r"|BackendUnavailable|InsufficientDriver|Missing(?:CUDA|Cuda|GPU)|(?:Package|Env|Name)NotFound"
        ),
        _ENVIRONMENT,
    ),
    (DAMAGED_NAMES, FailureClass.STORAGE_FAULT),
    (compile_later(r"ReadOnlyFile"), FailureClass.STORAGE_FAULT),
    (compile_later(r"NoSpace|StorageFull|DiskFull|DiskQuota"), FailureClass.DISK_FULL),
    (compile_later(r"N[aA]N(?=[A-Z]|$)|NonFinite|Diverge"), FailureClass.DIVERGED),
    (compile_later(r"Preempt|Evicted|SpotInterruption"), FailureClass.PREEMPTED),
    (compile_later(r"(?:Function|Job|Task|Run|Wall[tT]ime)(?:Timeout|TimedOut|Exceeded)"), FailureClass.TIMED_OUT),
    (
        compile_later(
            r"HorovodInternal|Rendezvous|errors_impl\.(?:Unavailable|DeadlineExceeded|Aborted|Cancelled)"
            r"|Comm\w*Closed|Heartbeat|PeerLost|BrokenBarrier|^zmq\."
        ),
        FailureClass.COMMUNICATION,
    ),
    (
        compile_later(
            r"(?:Connect(?:ion)?|Read|Write|Pool|Socket|Server|ServerSelection|FS)Timeout|ClientPayload|ClientOSError|ServerDisconnected|RemoteDisconnected|ServiceUnavailable"
            r"|(?:Service|Server|Store|Hub|Host)Unavailable|BadGateway|GatewayTimeout|RateLimit|TooManyRequests|Throttl"
            r"|API(?:Connection|Timeout)|EndpointConnection|Connect(?:ion|or)?\w{0,3}Error$|DownloadError$"
            r"|Incomplete(?:Read|Download|Body)|ContentTooShort|ConnectionLost|Service(?:Response|Request)(?:Timeout)?Error|Overloaded"
        ),
        FailureClass.TRANSIENT,
    ),
    (
        compile_later(
            r"(?:Worker|Actor|Owner|Node|Process|Executor|Kernel|Child)(?:Died|Lost|Crashed|Killed|Terminated)|Dead(?:Kernel|Worker)"
        ),
        FailureClass.KILLED,
    ),
)
"""By words in the name: of libraries, and of exceptions that a job derives from theirs."""

ERRNO: tuple[tuple[re.Pattern[str], FailureClass], ...] = (
    *STRERROR,
    (
        compile_later(
            r"(?i)\bno space left on device\b|\bENOSPC\b|\bstoragefull\b|\bdisk quota exceeded\b|\bEDQUOT\b"
            r"|\bdisk (?:is )?full\b|\bnot enough (?:free )?(?:disk )?space\b"
        ),
        FailureClass.DISK_FULL,
    ),
    (
        compile_later(
            r"(?i)\binput/output error\b|\bremote i/o error\b|\bstale (?:nfs )?file handle\b|\bread-only file ?system\b"
            r"|\btransport endpoint\b|\bstructure needs cleaning\b|\bhost is down\b|\bdisk i/o error\b|\bin safe mode\b"
            r"|\breadonly database\b|\bcommunication error on send\b"
        ),
        FailureClass.STORAGE_FAULT,
    ),
    (
        compile_later(
            r"(?i)\b(?:(?:unable|failed) to|can(?:not|'t)|could not) (?:be )?lock(?:ed)?\b|\bno locks available\b"
        ),
        FailureClass.STORAGE_FAULT,
    ),
    (
        compile_later(
            r"(?i)\btoo many open files\b|\bEMFILE\b|\bresource temporarily unavailable\b"
            r"|\bcan(?:'t|not) start new thread\b|\bmax_map_count\b|\bRLIMIT_"
        ),
        FailureClass.RESOURCE_LIMIT,
    ),
    (compile_later(r"(?i)\baddress already in use\b|\bEADDRINUSE\b"), FailureClass.COMMUNICATION),
    (compile_later(r"(?i)\bcannot allocate memory\b|\bENOMEM\b"), FailureClass.OUT_OF_MEMORY),
    (
        compile_later(
            r"(?i)\bpermission denied\b|\boperation not permitted\b(?! when)|\bEACCES\b|\bEPERM\b|\baccess is denied\b"
            r"|\bno such file or directory\b|\bENOENT\b|\bexec format error\b|\bno such device\b"
        ),
        _ENVIRONMENT,
    ),
)
"""By the system's own words, which every programming language takes from strerror(3). Source: errno(3)."""

TEXTS: tuple[tuple[re.Pattern[str], FailureClass], ...] = (
    (
        compile_later(r"\b(?:[NRHM]|one)CCL operation \w+ failed\b|\bnccl(?:Remote|System)Error\b"),
        FailureClass.COMMUNICATION,
    ),
    (
        compile_later(
            r"(?i)\b(?:is|are) not installed\b|\bnot found in your environment\b|unsupported[ _](?:ptx|cuda|gpu|driver)"
            r"|please (?:update|upgrade) (?:your|the) (?:\w+ ){0,2}(?:driver|runtime|version)"
            r"|\bversion (?:\S+ ){0,2}(?:mismatch|conflict)|\bincompatible (?:version|driver|cuda|gpu)"
            r"|\b(?:unmet|missing) dependenc|\bdependency (?:problem|conflict)|\bbroken packages?\b"
            r"|\b(?:cuda|hip|gpu|nvml|device|driver)\w*\b.{0,30}\binitiali[sz]ation (?:error|fail)"
            r"|\bversions are incompatible\b|\bbuilt (?:without|for (?:another|a different))\b"
            r"|\bincompatible with your\b"
            r"|\b(?:glad\w*|egl|glx|glfw|osmesa|opengl)\b.{0,40}\b(?:error|fail\w*|unavailable|not (?:found|available))"
            r"|\b(?:pip|conda|apt-get|apt|brew) install \S|\bincompatible with (?:the|your) installed\b"
            r"|\bnot compiled with\b|\bis required to (?:load|build|compile)\b|\bconflicting dependenc"
            r"|-dev is missing|\bplease (?:re)?install\b|\bis installed correctly\b|\bincompatible[_ ]driver\b"
            r"|\boperator \w+::\w+ does not exist|\b(?:error|failed) (?:building|compiling|to build"
            r"|to compile) (?:\S+ ){0,2}?\S*(?:extension|wheel)"
            r"|\b(?:failed|unable|cannot|can't|could ?n[o']t) (?:to )?(?:be )?"
            r"(?:dl)?(?:load|open|access|create|initiali[sz]e|find|locate) (?!.*\bin\b)(?:\S+ ){0,4}?\S*"
            r"(?:\.so\b|librar|driver|device|nvml|opencl|vulkan|gpu|compiler|certificate|credential|licen[cs]e|display)"
            r"|\bno (?:\S+ ){0,3}\S*(?:devices?|gpus?|drivers?|licen[cs]es?|displays?|credentials?|compiler)\b"
            r".{0,20}\b(?:found|available|detected|name|visible)\b|\bno display name\b"
            r"|\bfailed to (?:fetch|clone|pull|download|spawn|exec\w*)\b|\bunable to (?:\w+ )?(?:start|launch|spawn)\b"
            r"|\bconnect to the (?:\S+ ){0,3}daemon\b|\bunsatisfi(?:ed condition|able)\b"
            r"|\b(?:could not|cannot|unable to|failed to) (?:be )?(?:re)?solved? (?:\S+ ){0,3}(?:environment"
            r"|dependenc|requirement|spec)"
            r"|\bno solution found when resolving\b|\b(?:is|are) not installable\b"
            r"|\bto install (?:\w+ ){0,2}(?:dependenc|packages?|librar)|\bunable to find a compatible\b"
            r"|\bmodules?(?:\(s\))? (?:is|are) unknown\b|\b(?:python|cuda|driver|glibc|gcc"
            r"|compiler) version\b.{0,30}\bnot supported\b"
            r"|\b(?:python|cuda|driver|glibc|gcc) (?:version )?v?\d[\d.]* (?:is not supported|or (?:newer|higher"
            r"|later))"
        ),
        _ENVIRONMENT,
    ),
    (
        compile_later(
            r"(?i)\b(?:\w{0,20}error|status|code|http|response)\b[ _:=(\[]{1,3}(?:code[ :=]{0,3})?4(?!08|25|29)\d\d\b"
            r"(?!, message=.Not enough data)"
            r"|\blicen[cs](?:e|es|ed|ing)\b(?! plate).{0,60}\b(?:expired|invalid|fail|denied|not found|missing|exceed"
            r"|error|checkout|already reached)"
            r"|^\(?4(?!08|25|29)\d\d(?:\)|: | (?-i:[A-Z]))|\b(?:exceed\w*|over|reached) (?:\S+ ){0,3}(?:budget|quota"
            r"|billing)\b"
            r"|\blicensed to\b|\binvalid_grant\b|\b(?:credentials?|certificate|password|api key)\b.{0,40}"
            r"\b(?:expired|revoked|invalid|missing|not found|required|rejected)|\btoken\b.{0,20}\b(?:expired|revoked"
            r"|rejected)"
            r"|\b(?:do not|don't|does not) have (?:the )?(?:permission|access)|\bnot authori[sz]ed\b|\baccess denied\b"
            r"|\b(?:setup|machine|hardware|device|gpu|platform|environment) does(?:n't| not) support"
            r" (?:bf16|bfloat16|fp16|fp8|tf32|cuda|gpus?)\b|\bnot reachable via ssh\b|\bpasswordless ssh\b"
            r"|\bcorrect access rights\b|\bauthentication (?:failed|required)|\b(?:unauthori[sz]ed|forbidden)\b"
            r"|\bcompute capability\b|\bonly supports? .{0,40}\b(?:gpus?|devices?|cards?|architectures?)\b"
            r"|\b(?:not|only) (?:be )?(?:used|supported) (?:on|by|with) (?:this |your )?(?:cuda|gpus?|devices?"
            r"|platform|driver)"
        ),
        _ENVIRONMENT,
    ),
    (DAMAGED_TEXTS, FailureClass.STORAGE_FAULT),
    (
        compile_later(r"(?i)\bNetCDF: HDF error\b|\bfile locking disabled on\b|\bdriver lock request failed\b"),
        FailureClass.STORAGE_FAULT,
    ),
    (
        compile_later(
            r"(?i)\b(?:file watch|process|thread|open file|descriptor)\w* limit\b|\btoo many (?:open|processes)"
            r"|\bmapsize limit\b|\blocked memory\b|\b(?:check|increase|raise) (?:the )?ulimit\b"
        ),
        FailureClass.RESOURCE_LIMIT,
    ),
    (
        compile_later(
            r"(?i)\bmonitoredbarrier\b|\branks? \d+.{0,40}\b(?:failed to|did not|ha(?:s|ve) not|not (?:respond"
            r"|join)|timed out"
            r"|is (?:gone|dead))"
            r"|\b(?:no|missed|missing|lost|sending|without) (?:\S+ )?heartbeats?\b|\bheartbeats? (?:time|was|were"
            r"|lost|miss|expired|fail)|\b(?:another|other|remote|peer) (?:task|worker|rank|process|node"
            r"|peer)s?\b.{0,30}"
            r"\b(?:died|failed|gone|disconnected|exited|unreachable|unhealthy)\b|\bcollective op\w*\b.{0,30}\babort"
            r"|\bstream is closed\b|\bsocket closed\b|\bbroken pipe\b|\bpeer (?:closed|gone|hung up|disconnected)"
            r"|\bclosed by peer\b|\bunresponsive receiver\b|\bcommunicator was aborted\b"
            r"|\b(?:all-?(?:reduce|gather)|broadcast|barrier) (?:op(?:eration)? )?(?:has )?failed\b"
            r"|\b(?:failed|unable|cannot|could not) (?:to )?connect to\b"
        ),
        FailureClass.COMMUNICATION,
    ),
    (
        compile_later(
            r"(?i)\b(?:wall(?:-?clock)?[- ]?|run[- ]?)?time limit\b.{0,30}\b(?:exceeded|reached|hit|expired)"
            r"|\bstatus is:? ['\"]?TIMEOUT\b"
            r"|\b(?:exceed\w*|reached|hit|over) (?:\S+ ){0,3}(?:wall-?time|(?:wall-?|run-?)?time limit)\b"
        ),
        FailureClass.TIMED_OUT,
    ),
    (
        compile_later(
            r"(?i)\bconnection timed out\b|\b(?:read|write|connect) operation timed out\b"
            r"|\b(?:backend|server|gateway) error,? 50\d\b|\bremaining connection slots\b"
            r"|\btoo many (?:connections|clients)\b"
            r"|connect call failed|request failed after \d+ retries|max retries exceeded"
            r"|\b(?:service|server) (?:is )?(?:(?:temporarily )?unavailable|(?:too )?busy"
            r"|overloaded)\b(?!.*(?:expected|assert))"
            r"|\bconnection (?:was )?(?:lost|aborted|failed|closed by remote|closed unexpectedly)|\breset by peer\b"
            r"|\bclosed the connection\b|\blost connection to \w+ server\b|\bserver has gone away\b"
            r"|\bretrieval incomplete\b|\btransfer closed with \d+ bytes remaining\b|\bincomplete (?:download|body)\b"
            r"|\b(?:curl|wget)\b.{0,300}\bexit (?:code |status )?(?:5|6|7|16|18|28|35|52|55|56|92)\b"
        ),
        FailureClass.TRANSIENT,
    ),
    (
        compile_later(
            r"(?i)\b(?:workers?|kernel|actor|process(?:es)?|child|executor)\b.{0,20}\b(?:died|(?:was|were) killed"
            r"|crashed|no longer alive|terminated (?:abruptly|unexpectedly))\b"
            r"|\b(?:return|exit)(?:ed)?(?: with)?(?: code| status)?:? -9\b|\bfailed with -9\b|\bforcibly killed\b"
        ),
        FailureClass.KILLED,
    ),
)
"""By words in the text, where the name says nothing: of ``RuntimeError``, ``OSError`` and what a job names itself."""

ABSENT = compile_later(
    r"(?i)\b(?:unable|cannot|can't|could ?n[o']t) (?:to )?(?:be )?(?:find|locate|open"
    r"|load) (?!.*\bin\b)(?:\S+ ){0,3}?\S*"
    r"(?:model|file|director|path\b|checkpoint|dataset|executable|binary|host\b)|\bno file named\b"
    r"|\b(?:driver|library|package|module|model|device|file|director\w+|dataset|checkpoint|resource|tool|compiler"
    r"|experiment|bucket|path|image)\b.{0,60}\b(?:not found|does(?: not|n't) exist|is missing"
    r"|(?:could not|cannot|can't) be found)"
)
"""Something on a disk or a server that is not there; a ``ValueError`` means names of its own arguments."""
MEMORY = compile_later(
    r"(?i)\bout of memory\b|\bnot enough memory\b|\bunable to allocate\b|\binsufficient (?:system |host |cpu )?memory\b"
    r"|\bcannot allocate (?:memory|vector)\b|\bmemory allocation (?:error|fail)"
    r"|\bfailed to allocate (?:\S+ ){0,2}(?:memory|buffer|bytes?|\d)"
    r"|\bexceed\w* (?:\S+ ){0,3}memory (?:limit|budget)s?\b|\bOOM\b"
)
OF_A_CARD = compile_later(
    r"(?i)\b(?:cuda\w*|gpus?|hip|mps|[xnht]pu|vram|device|hbm|cudnn|cublas|mem-fraction-static|bfc_arena\S*)\b"
)
"""Whose memory ran out, where the text says no more than that it did."""
NONFINITE = compile_later(
    r"(?i)\b(?:loss|grad\w*|norm|logits?|weights?|parameters?|probabilit\w+|elements?|tensors?|activations?|energy"
    r"|coord(?:inate)?s?|positions?|velocit\w+)\b"
    r".{0,80}(?<![\w.])(?:nan|inf(?:inite(?! (?:loop|recursion))|inity)?|non-?finite|not (?:a )?finite)\b"
    r"|\b(?:nan|inf(?:inite)?|non-?finite) values? (?:\w+ ){0,3}(?:in|for|of) (?:\w+ ){0,3}(?:loss|grad|logit"
    r"|activation|weight)"
    r"|\breturned nan values\b|\bnon-?numeric (?:atom )?(?:coords?|coordinates?|positions?|pressure|energ\w+)\b"
    r"|\bfound (?:nan|inf|non-?finite)\b|(?<!contains )\b(?:nan|inf)s? (?:loss|grad|in (?:the |local )*(?:loss|grad))"
    r"|\bnon-?finite (?:loss|grad)|\btensor\(\[+(?:nan|-?inf)\b|\b(?:loss|training|model|run) (?:has |is "
    r"|was )?(?:diverg|explod)"
)
"""Numbers of a training that are not finite; data that are not (``Input X contains NaN``) are its own fault."""
QUOTING = compile_later(
    r"(?i)\bexpected\b|\bmust (?:be|not)\b|\bshould (?:be|have|not|only|match|equal|contain)\b|\bsee the (?:section"
    r"|manual)|\bgot\b"
)
"""A check that compares speaks of its own values."""
LASTS = compile_later(
    r"\b4(?!08|25|29)\d\d (?:Client Error|[A-Z])|\blocalhost\b|\b127\.\d+\.\d+\.\d+\b|\[Errno -2\]"
    r"|Name or service not known|[Pp]ermission|[Nn]ot found\b|[Ii]nvalid|[Cc]ould not find\b|::1\b"
    r"|(?i:\b(?:\w{0,20}error|status|code|http|response)\b[ _:=(\[]{1,3}(?:code[ :=]{0,3})?4(?!08|25|29)\d\d\b"
    r"(?!, message=.Not enough data))"
)
"""What is said of a connection and does not pass by itself."""
