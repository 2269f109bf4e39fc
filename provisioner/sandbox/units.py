"""systemd units of the simulated packages and of the node itself, with the names and the order that the real ones
have."""

from __future__ import annotations

UNITS = {
    "nvidia-persistenced.service": """\
[Unit]
Description=NVIDIA Persistence Daemon (simulated by gpuprov)

[Service]
Type=forking
PIDFile=/run/nvidia-persistenced/nvidia-persistenced.pid
RuntimeDirectory=nvidia-persistenced
ExecStart=/usr/bin/nvidia-persistenced --verbose
ExecStopPost=/bin/rm -rf /run/nvidia-persistenced

[Install]
WantedBy=multi-user.target
""",
    "nvidia-fabricmanager.service": """\
[Unit]
Description=NVIDIA fabric manager service (simulated by gpuprov)
After=network-online.target nvidia-persistenced.service
Requires=network-online.target

[Service]
User=root
PrivateTmp=false
Type=forking
TimeoutStartSec=720
ExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg
LimitCORE=infinity

[Install]
WantedBy=multi-user.target
""",
    "nvidia-dcgm.service": """\
[Unit]
Description=NVIDIA DCGM service (simulated by gpuprov)

[Service]
User=root
PrivateTmp=false
ExecStart=/usr/bin/nv-hostengine -n --service-account nvidia-dcgm
Restart=on-abort

[Install]
WantedBy=multi-user.target
""",
    "nvidia-dcgm-exporter.service": """\
[Unit]
Description=NVIDIA DCGM exporter (simulated by gpuprov)
After=nvidia-dcgm.service

[Service]
User=root
ExecStart=/usr/bin/dcgm-exporter -f /etc/dcgm-exporter/default-counters.csv
Restart=on-failure
RestartSec=2

[Install]
WantedBy=multi-user.target
""",
    "openibd.service": """\
[Unit]
Description=openibd - configure Mellanox devices (simulated by gpuprov)

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true

[Install]
WantedBy=multi-user.target
""",
    "nvidia-imex.service": """\
[Unit]
Description=NVIDIA IMEX service (simulated by gpuprov)
After=network-online.target
Requires=network-online.target

[Service]
User=root
PrivateTmp=false
Type=forking
TimeoutStartSec=infinity
ExecStart=/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg

[Install]
WantedBy=multi-user.target
""",
    "gpuprov-sandbox-sys.service": """\
[Unit]
Description=The kernel of a gpuprov sandbox node: what it shows below /sys, the modules that it loads
DefaultDependencies=no
After=local-fs-pre.target
Before=systemd-tmpfiles-setup.service systemd-sysctl.service gpuprov-sandbox-boot.service sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/lib/gpuprov-sandbox/sysfs
ExecStart=/usr/lib/gpuprov-sandbox/modules

[Install]
WantedBy=sysinit.target
""",
    "gpuprov-sandbox-boot.service": """\
[Unit]
Description=First boot of a gpuprov sandbox node
DefaultDependencies=no
After=local-fs.target gpuprov-sandbox-sys.service
Before=ssh.service multi-user.target
Wants=ssh.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/lib/gpuprov-sandbox/boot

[Install]
WantedBy=multi-user.target
""",
}
"""Unit files by name."""
