"""What logs say about the network: access that is refused, hosts that are not known, what may pass. Data only.

What lasts stands before what may pass, and at one place of a log the earlier rule counts: a request that is refused
(4xx), a name that does not exist and a service of this box that is not there are not mended by trying again.
"""

from __future__ import annotations

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.pattern import START, Pattern
from holdfast.model.verdict import FailureClass

_RAISED = r"^(?:\w+\.)*\w*(?:Error|Exception|Timeout|Failed)\w*: "
_HERE = r"(?:\blocalhost\b|\b127\.\d+\.\d+\.\d+\b|\[?::1\]?|\b0\.0\.0\.0\b)"
"""Addresses of this box. Source: RFC 6890; RFC 6761, 6.3."""
_PUBLIC = (
    r"(?:huggingface\.co|hf\.co|github(?:usercontent)?\.com|gitlab\.com|pypi\.org|pythonhosted\.org|pytorch\.org"
    r"|anaconda\.(?:org|com)|wandb\.ai|amazonaws\.com|googleapis\.com|windows\.net|ubuntu\.com|debian\.org"
    r"|nvidia\.com|docker\.io|openai\.com|anthropic\.com)"
)
"""Names that are spelt right: when such a one is not found or answers with 500, that passes."""

NETWORK: tuple[Pattern, ...] = (
    Pattern(
        "net.certificate",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("ertificate", "CERTIFICATE_VERIFY_FAILED"),
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|SSL certificate problem"
        r"|server certificate verification failed",
        (
            "urllib.error.URLError: <urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed>",
            "curl: (60) SSL certificate problem: self-signed certificate in certificate chain",
        ),
        ("InsecureRequestWarning: Adding certificate verification is strongly advised.",),
        "OpenSSL, X509_V_ERR; curl(1)",
        "give the job the certificate of the network that it is in (REQUESTS_CA_BUNDLE, SSL_CERT_FILE), or correct "
        "the clock of the box",
        passing=True,
    ),
    Pattern(
        "net.proxy",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("proxy", "Tunnel connection failed", "Proxy Authentication"),
        r"Unable to connect to proxy|Tunnel connection failed: 4\d\d|\b407 Proxy Authentication Required"
        r"|Received HTTP code 4\d\d from proxy",
        (
            (
                "requests.exceptions.ProxyError: HTTPSConnectionPool(host='x', port=443): Max retries "
                "(Caused by ProxyError('Unable to connect to proxy', OSError('Tunnel connection failed: 403')))"
            ),
            "curl: (56) Received HTTP code 407 from proxy after CONNECT",
        ),
        ("using proxy http://proxy:3128",),
        "urllib3; curl(1)",
        "the proxy does not let this through: correct HTTPS_PROXY and NO_PROXY, or ask for the host to be allowed",
        passing=True,
    ),
    Pattern(
        "net.offline",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("offline mode is enabled", "outgoing traffic has been disabled", "HF_HUB_OFFLINE", "OfflineModeIsEnabled"),
        r"offline mode is enabled|outgoing traffic has been disabled|^(?:\w+\.)*OfflineModeIsEnabled",
        (
            (
                "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/x: offline mode is "
                "enabled."
            ),
            (
                "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and "
                "outgoing traffic has been disabled."
            ),
        ),
        ("HF_HUB_OFFLINE is not set",),
        "huggingface_hub",
        "fetch the files into the cache first, or unset the variable that turns the network off (HF_HUB_OFFLINE)",
        passing=True,
    ),
    Pattern(
        "net.gated",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("GatedRepoError: ", "access a gated repo"),
        r"^(?:(?:\w+\.)*GatedRepoError: |OSError: You are trying to access a gated repo)(?s:.{0,700}?)"
        r"huggingface\.co/(?P<model>(?:datasets/|spaces/)?(?!api/)[\w.-]+/[\w.-]*\w)",
        (
            (
                "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-67)\n\nCannot "
                "access gated "
                "repo for url https://huggingface.co/acme/Large-8B/resolve/main/config.json."
            ),
            (
                "OSError: You are trying to access a gated repo.\nMake sure to have access to it at "
                "https://huggingface.co/acme/Large-8B.\n401 Client Error. (Request ID: Root=1-67)"
            ),
        ),
        ("GatedRepoError: see the manual",),
        "huggingface_hub, errors.py; transformers, utils/hub.py",
        "ask for access at https://huggingface.co/{model}, with the account whose token the job has; at a "
        "place a job gets a "
        "token with --secret HF_TOKEN (holdfast secret push PLACE HF_TOKEN keeps it there), here as the "
        "variable HF_TOKEN",
        passing=True,
        lines=8,
    ),
    Pattern(
        "net.denied",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            *("code 4", "code: 4", "code=4", "rror 4", "have permission", "have access", "HTTP 4", "http 4"),
            *("Client Error", "HTTP Error 4", "Error code: 4", "error 4", "error: 4", "Response [4", "status 4"),
            *("Forbidden", "Unauthorized", "NotFound", "BadRequest"),
            *("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "NoSuchKey"),
            *(
                "ExpiredToken",
                "locate credentials",
                "gated repo",
                "gated dataset",
                "Repository Not Found",
                "authentication failed",
            ),
            *("publickey", "Authentication failed", "insufficient_quota", "current quota", "could not read Username"),
            *(
                "AuthenticationError",
                "PermissionDenied",
                "status code 4",
                "Code: 4",
                "ERROR 4",
                "AccessDeniedException",
            ),
            *(
                *("nvalid user token", "nvalid API key", "ncorrect API key", "ssh: connect to host"),
                *("Client error '4", "ClientResponseError", "googleapi: Error 4", "Error from server ("),
                "Host key verification",
                "403 - Forbidden",
                "401 - Unauthorized",
                "StatusCode.UNAUTHENTICATED",
                "StatusCode.PERMISSION_DENIED",
            ),
        ),
        r"(?i:\b(?:\w{0,20}error|status|code|http|response)\b[ _:=(\[]{1,3}(?:code[ :=]{0,3})?4(?!08|25|29)\d\d\b"
        r"(?!, message=.Not enough data))"
        r"|\b(?:do|does)(?: not|n't) have (?:the )?(?:permission|access)\b"
        r"|^Error from server \((?:Forbidden|Unauthorized|NotFound)\)|Client error '4(?!08|25|29)\d\d"
        r"|ClientResponseError: 4(?!08|25|29)\d\d,|\b4(?!08|25"
        r"|29)\d\d Client Error|HTTP Error 4(?!08|25|29)\d\d"
        r"|Error code: (?:4(?!08|25|29)\d\d\b|429 .*(?:insufficient_quota|current quota))"
        r"|(?:returned error|requested URL returned error|status(?: code)?|Code):? 4(?!08|25|29)\d\d\b"
        r"|<Response \[4(?!08|25|29)\d\d\]>"
        r"|^(?:[\d:. -]{0,24} )?ERROR 4(?!08|25|29)\d\d: |googleapi: Error 4(?!08|29)\d\d|^AccessDeniedException: "
        r"|\b[Ii]nvalid (?:user token|API key)|[Ii]ncorrect API key"
        r"|^ssh: connect to host \S+ port \d+: Connection refused"
        r"|^Host key verification failed|^40[13] - (?:Forbidden|Unauthorized)|StatusCode\.(?:UNAUTHENTICATED"
        r"|PERMISSION_DENIED)"
        r"|^(?:\w+\.)*(?:Forbidden|Unauthorized|NotFound|BadRequest): 4\d\d "
        r"|\((?:AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|NoSuch(?:Bucket|Key)|ExpiredToken"
        r"|40[0134])\) when"
        r"|^(?:\w+\.)*NoCredentialsError: |^Repository Not Found for url|gated (?:repo|dataset)\b(?=.*(?:access"
        r"|auth|url|Hub))"
        r"|You are trying to access a gated repo"
        r"|FATAL: +password authentication failed|Permission denied \(publickey|^fatal: (?:Authentication failed"
        r"|could not"
        r" read Username)|^(?:\w+\.)*(?:AuthenticationError|PermissionDenied\w*): ",
        (
            "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://x",
            "urllib.error.HTTPError: HTTP Error 404: Not Found",
            "openai.AuthenticationError: Error code: 401 - {'error': {}}",
            "openai.RateLimitError: Error code: 429 - {'error': {'type': 'insufficient_quota'}}",
            "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation",
            "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
            "google.api_core.exceptions.Forbidden: 403 GET https://storage.googleapis.com/x",
            "git@github.com: Permission denied (publickey).",
            "curl: (22) The requested URL returned error: 404",
            "error: RPC failed; HTTP 403 curl 22 The requested URL returned error: 403",
            "wandb: ERROR Error while calling W&B API: permission denied (<Response [403]>)",
            "mlflow.exceptions.MlflowException: API request to endpoint /api failed with error code 403 != 200.",
            "ConnectionError: Couldn't reach https://x.example/train.json (error 404)",
            "wandb.errors.CommError: It appears that you do not have permission to access the requested resource.",
        ),
        (
            "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://x",
            "step 3: 412 samples",
            "HTTP Error 408: Request Timeout",
        ),
        "RFC 9110, 15.5: the request, not the server, is at fault",
        (
            "the server refuses this request: correct the address, the token or the permission; trying again changes "
            "nothing"
        ),
        passing=True,
    ),
    Pattern(
        "net.loopback",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            "refused",
            "etries exceeded",
            "imed out",
            *("Server Error", "Server error '5"),
            "ailed to establish",
            "ailed to connect",
            "isconnected",
            "reset by peer",
        ),
        r"(?:" + _RAISED + r"|^curl: \(\d+\) )(?!.*(?:client socket|gloo|TCPStore|NCCL))(?=.*" + _HERE + r")"
        r".*(?:refused|retries exceeded|[Tt]imed? ?out|5\d\d Server Error|Server error '5|Failed to (?:establish"
        r"|connect)"
        r"|[Dd]isconnected|reset by peer|closed)",
        (
            "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='localhost', port=8000): Read timed out.",
            "redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.",
            "requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: http://127.0.0.1:8000/v1",
            "curl: (7) Failed to connect to localhost port 5000: Connection refused",
        ),
        (
            "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:4711",
            "INFO: Uvicorn running on http://127.0.0.1:8000",
        ),
        "RFC 6890: an address of this box",
        "a service on this box does not answer: see whether it was started (and its own log), then run again",
        passing=True,
    ),
    Pattern(
        "net.unknown_host",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            *(
                "Name or service not known",
                "Errno -2]",
                "gai error: -2",
                "Could not resolve host",
                "nodename nor servname",
            ),
            *("ould not resolve host", "no such host", "No address associated", "Name does not resolve"),
            "unable to resolve host address",
        ),
        r"unable to resolve host address|Name or service not known|\[Errno -2\]|gai error: -2\b"
        r"|nodename nor servname provided"
        r"|No address associated with hostname|Name does not resolve|dial tcp: lookup \S+.*: no such host"
        r"|[Cc]ould not resolve host(?:name)?:? ?(?![\w.-]*" + _PUBLIC + r")(?P<host>[\w.-]+)",
        (
            "socket.gaierror: [Errno -2] Name or service not known",
            "curl: (6) Could not resolve host: hugingface.co",
            "ssh: Could not resolve hostname gpu-node-O1: Name or service not known",
        ),
        ("curl: (6) Could not resolve host: huggingface.co", "socket.gaierror: [Errno -3] Temporary failure in name"),
        "getaddrinfo(3), EAI_NONAME and EAI_NODATA: the name servers answered that there is no such name",
        "no such host: correct its name where the job has it from (MASTER_ADDR, a URL), or the box's resolv.conf",
        passing=True,
    ),
    Pattern(
        "net.resolve",
        LineRole.ROOT,
        FailureClass.TRANSIENT,
        ("name resolution", "resolve host", "NameResolutionError", "getaddrinfo failed", "Errno -3]", "gai error: -3"),
        r"Temporary failure in name resolution|[Cc]ould not resolve host(?:name)?:? ?(?P<host>[\w.-]+)?"
        r"|NameResolutionError\(|getaddrinfo failed|(?:socket\.gaierror: |<urlopen error )\[Errno -3\]|gai error: -3\b",
        (
            "socket.gaierror: [Errno -3] Temporary failure in name resolution",
            "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
            "curl: (6) Could not resolve host: huggingface.co",
            "fatal: unable to access 'https://x/': Could not resolve host: github.com",
        ),
        ("name resolution took 3 ms", "socket.gaierror: [Errno -8] Servname not supported for ai_socktype"),
        "getaddrinfo(3), EAI_AGAIN",
        passing=True,
    ),
    Pattern(
        "net.rate_limit",
        LineRole.ROOT,
        FailureClass.TRANSIENT,
        (
            *("Client Error", "client error (429"),
            "Error 429",
            "code: 429",
            "TooManyRequests",
            "Too Many Requests",
            *("RateLimitError", "xhausted: 429", "returned error: 429"),
            "SlowDown",
            "Throttling",
            "RequestLimitExceeded",
            "rate limit",
        ),
        r"requested URL returned error: 429\b|Client error '429|ClientResponseError: 429,|\b429 Client Error"
        r"|HTTP Error 429|Error code: 429|\bHTTP status client error \(429"
        r"|" + START + r"429(?: |:|$)(?=.*(?:Too Many|[Rr]ate|[Qq]uota .*per (?:minute|second)))"
        r"|\((?:SlowDown|Throttling\w*|TooManyRequests\w*|RequestLimitExceeded|429|503)\) when calling"
        r"|^(?:\w+\.)*(?:RateLimitError|TooManyRequests\w*|ThrottlingException): ",
        (
            "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x",
            "RuntimeError: Data processing error: Reqwest Error: HTTP status client error (429 Too Many Requests)",
            "openai.RateLimitError: Error code: 429 - {'error': {'code': 'rate_limit_exceeded'}}",
            "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation",
            "google.api_core.exceptions.TooManyRequests: 429 GET https://storage.googleapis.com/x: rate limit",
        ),
        ("step 429: rate 3e-4", "INFO rate limit: 5000 requests, 4000 left"),
        "RFC 6585, 4; AWS error codes",
        passing=True,
    ),
    Pattern(
        "net.retry_after",
        LineRole.CONFIRMATION,
        None,
        ("etry-", "etry_", "etry after", "etry in", "try again "),
        r"(?i)\bretry[-_ ]after['\"]?(?: is)?[:=]? ?['\"]?(?P<retry_after>\d{1,5})\b"
        r"|\b(?:please )?(?:retry|try again) (?:in|after) (?P<again_in>\d{1,5})(?:\.\d+)? ?s(?:ec|\b)",
        ("Retry-After: 300", "Please try again in 20s.", "{'retry_after': 60}"),
        ("Retrying in 1s [Retry 1/5].", "try again in a while"),
        "RFC 9110, 10.2.3",
    ),
    Pattern(
        "net.destination",
        LineRole.ROOT,
        FailureClass.SYNC_FAILED,
        ("No such file or directory", "scp: dest open"),
        r'^rsync: (?:\[\w+\] )?(?:mkdir|change_dir#?\d*|ERROR: cannot stat destination) ?"[^"]+" failed:'
        r" No such file or directory|^scp: (?:dest open |realpath )?\S+: No such file or directory"
        r"|^scp: dest open \S+: Failure\s*$",
        (
            'rsync: [Receiver] mkdir "/data/run7/ckpt" failed: No such file or directory (2)',
            'scp: dest open "/data/run7/model.pt": No such file or directory',
            "scp: /data/run7: No such file or directory",
            'scp: dest open "/data/run7/model.pt": Failure',
        ),
        ('rsync: link_stat "/x" failed: No such file or directory (2)', "no scp: No such file or directory here"),
        "rsync(1), main.c; OpenSSH, scp.c",
        "make the destination in the same command (rsync --mkpath, or mkdir -p first), and copy again",
        ("U13",),
        passing=True,
    ),
    Pattern(
        "net.transfer",
        LineRole.ROOT,
        FailureClass.TRANSIENT,
        (
            "IncompleteRead",
            "ChunkedEncodingError",
            "Connection broken",
            "ReadTimeout",
            "Read timed out",
            "ConnectTimeout",
            "curl: (",
            "rsync error",
            "Connection refused",
            "ConnectionError",
            "Too Many Requests",
            "Service Unavailable",
            "Gateway",
            "client_loop: send disconnect",
            "Connection reset by",
            *("Connection closed", "closed by remote host"),
            "Read from remote host",
            "lost connection",
            "Max retries exceeded",
            "ProtocolError",
            "Server Error",
            "HTTP Error 5",
            "Error code: 5",
            "ServiceUnavailable",
            *("Could not connect to the endpoint", "endpoint URL", "CondaHTTPError"),
            "couldn't connect to '",
            "onnect to 'https://",
            "Disconnected",
            *("InternalServerError", "timed out", "googleapi: Error", "StatusCode.", "ERROR 50"),
            *("ssh: connect to host", "check your connection", "Server error '50", "ClientResponseError"),
            "requested URL returned error: 50",
            *("RPC failed; ", "fatal: early EOF", "fetch-pack: "),
        ),
        r"^error: RPC failed; (?!.*\b4(?!29)\d\d\b)|^fatal: early EOF$"
        r"|^(?:fatal: )?fetch-pack: (?:unexpected disconnect|invalid index-pack)"
        r"|requested URL returned error: 50[0234]\b|^(?:\w+\.)*(?:ChunkedEncodingError|IncompleteRead"
        r"|ReadTimeout(?:Error)?|ConnectTimeout(?:Error)?"
        r"|ProtocolError|(?:requests\.exceptions|urllib3\.exceptions|httpx"
        r"|aiohttp\.\w+)\.?\w*Connect\w*Error)\b|^requests\.exceptions\.ConnectionError"
        r"|^curl: \((?:7|18|28|35|52|55|56)\) |^rsync error: .*\(code (?:10|12|30|35|255)\)"
        r"|client_loop: send disconnect|^Connection (?:reset|closed) by \S+ port \d+\s*$"
        r"|^scp: Connection closed\s*$|^lost connection\s*$|^Connection to \S+ closed by remote host"
        r"|^Read from remote host \S+: Connection reset by peer"
        r"|^(?:\w+\.)*(?:HTTPError|HfHubHTTPError): (?:HTTP Error )?50[234]\b|\b50[234] Server Error"
        r"|\b500 Server Error: .*for url: https?://[\w.-]*" + _PUBLIC + r"|Error code: 50[234]\b"
        r"|^(?:\w+\.)*(?:ServiceUnavailable|BadGateway|GatewayTimeout|InternalServerError): 50\d "
        r"|Server error '50[234]|Client(?:Response)?Error: 50[234],|Error code: 529\b"
        r"|^ssh: connect to host \S+ port \d+: (?:Connection timed out|No route to host|Network is unreachable)"
        r"|^(?:\w+\.)*LocalEntryNotFoundError: .*check your connection"
        r"|Could not connect to the endpoint URL|\bCondaHTTPError: HTTP 50[0234] "
        r"|\b(?:(?:Read|Connect) timeout on|was closed before we received a valid response from) endpoint URL"
        r"|googleapi: Error 50[0234]|status = StatusCode\.(?:UNAVAILABLE"
        r"|DEADLINE_EXCEEDED)|^[\d:. -]{0,24}ERROR 50[234]: "
        r"|^(?:\w+\.)*(?:ServerDisconnected|RemoteDisconnected|EndpointConnection)\w*: "
        r"|^(?:\w+\.)*\w+: We couldn't connect to 'https://",
        (
            (
                "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', "
                "port=443): Max retries exceeded with url: /x"
            ),
            "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(512 bytes read)')",
            (
                "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x', port=443): Read timed "
                "out. (read timeout=10)"
            ),
            "curl: (56) Recv failure: Connection reset by peer",
            "rsync error: error in rsync protocol data stream (code 12) at io.c(232) [receiver=3.2.7]",
            "client_loop: send disconnect: Broken pipe",
            "Connection reset by 203.0.113.7 port 22",
            "Read from remote host box.example.org: Connection reset by peer",
            "lost connection",
            "urllib.error.HTTPError: 503 Service Unavailable",
            "urllib.error.HTTPError: HTTP Error 503: Service Unavailable",
            "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected",
            "requests.exceptions.HTTPError: 500 Server Error: Internal for url: https://huggingface.co/api/x",
            "google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage.googleapis.com/x",
            "fatal: unable to access 'https://github.com/x.git/': The requested URL returned error: 503",
            "fatal: fetch-pack: invalid index-pack output",
            "CondaHTTPError: HTTP 504 GATEWAY TIME-OUT for url <https://conda.example/bioconda/repodata.json>",
            'fatal error: Connection was closed before we received a valid response from endpoint URL: "https://b/?x"',
            'download failed: s3://b/a.jpg to a.jpg Read timeout on endpoint URL: "https://b.s3.amazonaws.com/a.jpg"',
        ),
        (
            "retries: ReadTimeout is set to 10",
            "a client's Connection closed by 10.0.0.1 port 22 is not ours",
            "worker 3 lost connection, 7 are left",
            "curl: (22) The requested URL returned error: 404",
            "urllib.error.HTTPError: HTTP Error 404: Not Found",
            "requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: http://scorer:8000/v1",
            "ConnectionRefusedError: [Errno 111] Connection refused",
            "CondaHTTPError: HTTP 404 NOT FOUND for url <https://conda.example/bioconda/repodata.json>",
        ),
        "requests, urllib3; curl(1); rsync(1); OpenSSH, packet.c, scp.c",
        gotchas=("U12",),
        passing=True,
    ),
)
