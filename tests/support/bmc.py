"""BMCs that answer over HTTPS out of real trees, take changes as their vendors do, and fail as real ones were seen to.

A BMC keeps its machine's power, boot override and virtual drives; what the machine does when it is switched on is the
test's (`booted`). Every change is written down (`changes`), so that neighbours can be shown to be left alone.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import secrets
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import urllib3

from tests.support.sandbox_cluster import ROOT

TREES = ROOT / "tests/unit/machines/redfish/trees"
ANSWERS: dict[str, dict[str, Any]] = {
    row["answer"]: row for row in json.loads((ROOT / "tests/unit/machines/redfish/answers.json").read_text())
}


DELL = {"ServerBoot.1.BootOnce": "Enabled", "ServerBoot.1.FirstBootDevice": "Normal"} | {
    f"RFS.{number}.{name}": value
    for number in (1, 2) for name, value in {"MediaAttachState": "Detached", "Status": "Done"}.items()
}  # fmt: skip
"""What an iDRAC 9 says of the next start and of its virtual drives while nothing is attached: a published capture of
its attributes (iDRAC.Embedded.1), and what was read on an R740xd with firmware 7.00.00.182."""


def tree(name: str) -> dict[str, Any]:
    resources: dict[str, Any] = json.loads(gzip.decompress((TREES / f"{name}.redfish.json.gz").read_bytes()))
    if MANNERS.get(name, Manners()).own:
        at = resources["/redfish/v1/Managers/iDRAC.Embedded.1"]["Links"]["Oem"]["Dell"]["DellAttributes"][0][
            "@odata.id"
        ]
        resources[at] = {"@odata.id": at, "Id": "iDRACAttributes", "Attributes": dict(MANNERS[name].own)}
    return resources


@dataclass
class Manners:
    """How a vendor's BMC takes changes. `etag`: none, weak or strong, wanted with a change; `insert`: names of answers
    (answers.json) given until the request has, or has not, what they ask for."""

    etag: str = ""
    insert: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = ()
    own: dict[str, str] = field(default_factory=dict)
    """Attributes by which an iDRAC chooses where the next start is from: its `Cd` is a physical drive."""


MANNERS = {
    "nvidia-dgx-h100": Manners(
        "strong",
        (
            ("ami-400-transfer-protocol-type-missing.json", lambda body: "TransferProtocolType" not in body),
            ("dgx-400-insert-wants-username-password.json", lambda body: "UserName" not in body),
        ),
    ),
    "dell-poweredge-r750-h100pcie": Manners(
        "",
        (("idrac9-insert-write-protected-SYS458.json", lambda body: body.get("WriteProtected") is False),),
        DELL,
    ),
    "hpe-apollo6500-xl675d-a100": Manners(
        "weak", (("ilo4-patch-property-unknown.json", lambda body: "Inserted" in body),)
    ),
    "lenovo-sr670v2-l40": Manners("strong"),
    "nvidia-gb200-nvl": Manners("", (("400-transfer-method-missing.json", lambda body: "TransferMethod" not in body),)),
    "supermicro-sys-821ge-tnhr": Manners(
        "strong", (("ilo4-patch-property-unknown.json", lambda body: "Inserted" in body or "WriteProtected" in body),)
    ),
}


@dataclass
class Faulty:
    """What is wrong with a BMC or its machine."""

    busy: int = 0
    """Answers 503 to that many requests."""
    drops_session: int = 0
    """Ends the session after that many requests, as often."""
    full: bool = False
    """Has no session free (RAC0218)."""
    wrong_password: bool = False
    never_attaches: bool = False
    never_boots: bool = False
    never_at_the_host: bool = False
    """Attaches an image and does not give it to the machine (Dell)."""
    no_attributes: bool = False
    """Answers 500 for its own attributes (Dell)."""
    no_virtual_cd: bool = False
    """Refuses VCD-DVD as first boot device."""
    forever: bool = False
    """Makes Continuous of the boot override Once."""
    slow_s: float = 0.0
    resets: int = 0
    """Closes the connection instead of that many answers."""


@dataclass
class Bmc:
    known: dict[str, Any]
    manners: Manners = field(default_factory=Manners)
    faults: Faulty = field(default_factory=Faulty)
    user: str = "admin"
    password: str = "not-a-real-one"
    booted: Callable[[Bmc, str], object] = lambda bmc, image: None
    """Called when the machine starts, with the image that it starts from, "" for its own disk."""
    changes: list[tuple[str, str, Any]] = field(default_factory=list)
    sessions: dict[str, str] = field(default_factory=dict)
    opened: int = 0
    asked: int = 0
    port: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def find(self, kind: str) -> dict[str, Any]:
        resource: dict[str, Any] = next(
            candidate
            for candidate in self.known.values()
            if str(candidate.get("@odata.type")).startswith(f"#{kind}.v")
            and candidate.get("Actions", {}).get("#ComputerSystem.Reset")
        )
        return resource

    @property
    def system(self) -> dict[str, Any]:
        return self.find("ComputerSystem")

    @property
    def inserted(self) -> list[str]:
        return list(self.attached.values())

    waits: int = 0
    """How often its attributes are read until an image that was attached is at the host."""

    @property
    def attached(self) -> dict[str, str]:
        """Id of a virtual drive → its image."""
        return {
            str(drive["Id"]): str(drive["Image"])
            for uri, drive in self.known.items()
            if "/VirtualMedia/" in uri and drive.get("Inserted") is True
        }

    def get(self, uri: str) -> Any:
        resource = self.known.get(uri.rstrip("/") or "/")
        if self.own and resource is self.own and self.inserted and not self.faults.never_at_the_host:
            self.waits -= 1
            if self.waits < 0:
                for slot in self.attached:
                    self.own["Attributes"][f"RFS.{slot}.MediaAttachState"] = "Attached"
        return resource

    @property
    def own(self) -> dict[str, Any]:
        """The attributes of an iDRAC; empty on another one."""
        return next(
            (resource for resource in self.known.values() if "ServerBoot.1.BootOnce" in resource.get("Attributes", {})),
            {},
        )

    # What a machine does

    def reset(self, kind: str) -> None:
        system = self.system
        if kind in ("ForceOff", "GracefulShutdown"):
            system["PowerState"] = "Off"
        elif kind in ("On", "ForceOn", "ForceRestart", "PowerCycle", "GracefulRestart"):
            if kind in ("On", "ForceOn") and system["PowerState"] == "On":
                return
            system["PowerState"] = "On"
            self.start()

    def start(self) -> None:
        boot = self._boot()
        target = boot.get("BootSourceOverrideTarget") if boot.get("BootSourceOverrideEnabled") != "Disabled" else "None"
        if boot.get("BootSourceOverrideEnabled") == "Once":
            for boot_settings in self._boots():
                boot_settings["BootSourceOverrideEnabled"] = "Disabled"
        image = self.inserted[0] if target in ("Cd", "UsbCd", "Usb") and self.inserted else ""
        if self.own:
            attributes = self.own["Attributes"]
            attached_images = [
                image_url
                for slot, image_url in self.attached.items()
                if attributes[f"RFS.{slot}.MediaAttachState"] == "Attached"
            ]
            image = (
                attached_images[0]
                if attributes["ServerBoot.1.FirstBootDevice"] == "VCD-DVD" and attached_images
                else ""
            )
            attributes["ServerBoot.1.FirstBootDevice"] = "Normal"
        if not self.faults.never_boots:
            self.booted(self, image)

    def _boots(self) -> list[dict[str, Any]]:
        settings_uri = self.system.get("@Redfish.Settings", {}).get("SettingsObject", {}).get("@odata.id")
        both = [self.system, *([self.known[settings_uri]] if settings_uri in self.known else [])]
        return [resource["Boot"] for resource in both if "BootSourceOverrideTarget" in resource.get("Boot", {})]

    def _boot(self) -> dict[str, Any]:
        return self._boots()[-1]

    def patch(self, uri: str, body: dict[str, Any]) -> tuple[int, Any]:
        resource = self.get(uri)
        if resource and resource is self.own:
            if self.faults.no_virtual_cd and "VCD-DVD" in body["Attributes"].values():
                return _answer("idrac9-insert-write-protected-SYS458.json")
            resource["Attributes"].update(body["Attributes"])
            return 200, None
        if "Boot" in body:
            settings = self.system.get("@Redfish.Settings", {}).get("SettingsObject", {}).get("@odata.id")
            if (
                settings in self.known
                and "BootSourceOverrideTarget" in self.known[settings].get("Boot", {})
                and uri != settings
            ):
                return _answer("ilo-400-unsupported-operation.json")
            targets = resource["Boot"].get("BootSourceOverrideTarget@Redfish.AllowableValues", [])
            if (target := body["Boot"].get("BootSourceOverrideTarget")) and target not in targets:
                return _answer("idrac9-insert-write-protected-SYS458.json")
            taken = dict(body["Boot"])
            if self.faults.forever and taken.get("BootSourceOverrideEnabled") == "Once":
                taken["BootSourceOverrideEnabled"] = "Continuous"
            for boot_settings in self._boots():
                boot_settings.update(taken)
            return 200, json.loads(ANSWERS["ilo-200-success-in-error.json"]["body"])
        if "Image" in body and "/VirtualMedia/" in uri:
            return self.insert(resource, body) if body["Image"] else self.eject(resource)
        return _answer("ilo-400-unsupported-operation.json")

    def post(self, uri: str, body: dict[str, Any]) -> tuple[int, Any]:
        if uri.endswith("ComputerSystem.Reset"):
            self.reset(body["ResetType"])
            return 204, None
        if uri.endswith("EnableRMedia"):
            media = next(candidate for u, candidate in self.known.items() if u.endswith("/VirtualMedia"))
            base = media["@odata.id"]
            slot = {
                "@odata.id": f"{base}/CD1", "@odata.type": "#VirtualMedia.v1_3_0.VirtualMedia", "Id": "CD1",
                "MediaTypes": ["CD", "DVD"],
                "Inserted": False, "ConnectedVia": "NotConnected", "Image": None,
                "Actions": {
                    f"#VirtualMedia.{do}": {"target": f"{base}/CD1/Actions/VirtualMedia.{do}"}
                    for do in ("InsertMedia", "EjectMedia")
                },
            }  # fmt: skip
            self.known[f"{base}/CD1"] = slot
            media.update({"Members": [{"@odata.id": f"{base}/CD1"}], "Members@odata.count": 1})
            return 202, None
        slot = self.get(re.sub(r"/Actions/VirtualMedia\..*", "", uri))
        if slot is None:
            return 404, None
        return self.insert(slot, body) if uri.endswith("InsertMedia") else self.eject(slot)

    def insert(self, slot: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        for name, lacks in self.manners.insert:
            if lacks(body):
                return _answer(name)
        if slot.get("Inserted") is True:
            return 409, None
        if self.faults.never_attaches:
            return 204, None
        try:  # a BMC fetches the image itself, a piece at a time, and its certificate is not of its authorities
            with urllib3.PoolManager(cert_reqs="CERT_NONE") as web:
                got = web.request(
                    "GET", body["Image"], headers={"Range": "bytes=32768-32773"}, retries=False, timeout=5
                )
        except urllib3.exceptions.HTTPError:
            return _answer("idrac9-insert-unreachable-RAC0904.json")
        if got.status != 206 or got.data[1:6] != b"CD001":
            return _answer("idrac9-insert-unreachable-RAC0904.json")
        slot.update(Image=body["Image"], Inserted=True, ConnectedVia="URI")
        self.waits = 3
        return 204, None

    def eject(self, slot: dict[str, Any]) -> tuple[int, Any]:
        slot.update(Inserted=False, ConnectedVia="NotConnected")  # Image stays, as Supermicro keeps it
        if self.own:
            self.own["Attributes"][f"RFS.{slot['Id']}.MediaAttachState"] = "Detached"
        return 204, None


def _answer(name: str) -> tuple[int, Any]:
    row = ANSWERS[name]
    return row["status"] or 400, json.loads(row["body"])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    bmc: Bmc

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_one_request(self) -> None:
        with contextlib.suppress(OSError):
            super().handle_one_request()

    def _say(self, status: int, body: Any = None, headers: dict[str, str] | None = None) -> None:
        raw = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _all(self) -> None:
        bmc, uri = self.bmc, self.path.partition("?")[0].rstrip("/")
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}") if length else {}
        time.sleep(bmc.faults.slow_s)
        with bmc.lock:
            bmc.asked += 1
            self._answered(bmc, uri, body)

    def _answered(self, bmc: Bmc, uri: str, body: dict[str, Any]) -> None:
        if bmc.faults.resets > 0:
            bmc.faults.resets -= 1
            self.close_connection = True
            self.connection.close()
            return
        if uri == "/redfish/v1" and self.command == "GET":
            self._say(200, bmc.get(uri))
            return
        if bmc.faults.busy > 0:
            bmc.faults.busy -= 1
            self._say(503)
            return
        if uri.endswith("/SessionService/Sessions") and self.command == "POST":
            self._sign_in(bmc, uri, body)
            return
        token = self.headers.get("X-Auth-Token", "")
        basic = urllib3.make_headers(basic_auth=f"{bmc.user}:{bmc.password}")["authorization"]
        if token not in bmc.sessions and self.headers.get("Authorization") != basic:
            row = ANSWERS["ilo5-401-no-valid-session.json"]
            self._say(401, json.loads(row["body"]) if token else None)
            return
        if bmc.faults.drops_session and token and self.command != "DELETE":
            bmc.faults.drops_session -= 1
            if bmc.faults.drops_session % 5 == 0:
                del bmc.sessions[token]
        if self.command == "DELETE":
            bmc.sessions.pop(next((key for key, value in bmc.sessions.items() if value == uri), ""), None)
            self._say(204)
        elif self.command == "GET":
            document = bmc.get(uri)
            if bmc.faults.no_attributes and document is not None and document is bmc.own:
                self._say(500, {"error": {"code": "Base.1.12.InternalError", "message": "internal"}})
                return
            self._say(
                404 if document is None else 200,
                document,
                {"ETag": self._etag(document)} if document and bmc.manners.etag else {},
            )
        else:
            self._changed(bmc, uri, body)

    def _sign_in(self, bmc: Bmc, uri: str, body: dict[str, Any]) -> None:
        if bmc.faults.full:
            row = ANSWERS["idrac9-503-session-limit-RAC0218.json"]
            self._say(row["status"], json.loads(row["body"]))
        elif bmc.faults.wrong_password or (body.get("UserName"), body.get("Password")) != (bmc.user, bmc.password):
            self._say(401)
        else:
            token = secrets.token_hex(8)
            bmc.opened += 1
            bmc.sessions[token] = f"{uri}/{bmc.opened}"
            self._say(201, {"@odata.id": bmc.sessions[token]}, {"X-Auth-Token": token, "Location": bmc.sessions[token]})

    def _etag(self, document: Any) -> str:
        tag = f'"{abs(hash(json.dumps(document, sort_keys=True))):x}"'
        return f"W/{tag}" if self.bmc.manners.etag == "weak" else tag

    def _changed(self, bmc: Bmc, uri: str, body: dict[str, Any]) -> None:
        if self.command == "PATCH" and bmc.manners.etag:
            client_tag, current_tag = self.headers.get("If-Match", ""), self._etag(bmc.get(uri))
            if not client_tag and bmc.manners.etag == "strong":
                row = ANSWERS["ami-428-precondition-header-missing.json"]
                self._say(row["status"], json.loads(row["body"]))
                return
            if client_tag.removeprefix("W/") != current_tag.removeprefix("W/"):
                self._say(412)
                return
        status, answer = (bmc.patch if self.command == "PATCH" else bmc.post)(uri, body)
        if status < 400:
            bmc.changes.append((self.command, uri, body))
        self._say(status, answer)

    do_GET = do_POST = do_PATCH = do_DELETE = _all


def certificate(folder: Path) -> Path:
    """A self-signed certificate with its key, as BMCs have; a new one each time."""
    pem = folder / f"bmc-{secrets.token_hex(4)}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=bmc",
         "-keyout", str(pem), "-out", str(pem) + ".crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    pem.write_text(pem.read_text() + Path(str(pem) + ".crt").read_text())
    return pem


@contextlib.contextmanager
def serving(bmc: Bmc, pem: Path, port: int = 0) -> Iterator[Bmc]:
    handler = type("Handler", (_Handler,), {"bmc": bmc})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None  # type: ignore[method-assign, assignment]
    bmc.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield bmc
    finally:
        server.shutdown()
        server.server_close()
