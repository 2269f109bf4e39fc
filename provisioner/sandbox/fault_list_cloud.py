"""What a cloud does to a machine. See fault_list.py for how a fault is written."""

from __future__ import annotations

from provisioner.sandbox.fault_list import Commands, Fault

METADATA = """import http.server, json, time
at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 120))
class Metadata(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        self.give(200 if self.path == "/latest/api/token" else 404, "simulated-by-gpuprov")
    def do_GET(self):
        if self.headers.get("X-aws-ec2-metadata-token") != "simulated-by-gpuprov":
            self.give(401, "")
        elif self.path == "/latest/meta-data/spot/instance-action":
            self.give(200, json.dumps({"action": "terminate", "time": at}))
        else:
            self.give(404, "")
    def give(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
http.server.ThreadingHTTPServer(("127.0.0.1", 1338), Metadata).serve_forever()"""
"""Amazon's metadata service as far as a spot machine's notice goes, where a sandbox node asks for it
(provisioner/plan/roles/interruption.py)."""
HANDLED = """import json, sys
record = json.load(open("/run/gpuprov/interruption.json"))
sys.exit(not record["notice"] or (record["hook"] or {}).get("state") == "running")"""
AGAIN = "systemctl restart gpuprov-interruption.service"


def _shell(*lines: str) -> Commands:
    return (("sh", "-ec", "\n".join(lines)),)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "spot-notice",
        "the cloud announces that it takes the spot machine away in two minutes",
        "cloud.interruption",
        lambda machine: bool(machine.get("spot")),
        "a group of spot machines on AWS",
        break_=(
            ("systemd-run", "--quiet", "--unit=gpuprov-sandbox-metadata", "python3", "-c", METADATA),
            *_shell(
                # It is there when the port answers; the watcher then asks at once.
                "for i in $(seq 100); do",
                "  curl --silent --output /dev/null http://127.0.0.1:1338/ && break; sleep 0.1",
                "done",
                AGAIN,
            ),
            (
                "sh",
                "-c",
                'for i in $(seq 300); do python3 -c "$0" 2>/dev/null && exit 0; sleep 0.2; done; exit 1',
                HANDLED,
            ),
        ),
        mend=_shell(
            "systemctl stop gpuprov-sandbox-metadata gpuprov-interrupted.service || :",
            "systemctl reset-failed gpuprov-interrupted.service 2>/dev/null || :",
            "systemctl stop gpuprov-interruption.service",
            "rm -f /run/gpuprov/interruption.json",
            "systemctl start gpuprov-interruption.service",
        ),
    ),
)
