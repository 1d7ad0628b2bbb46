#!/bin/bash
# The second stage: no service manager, cgroup version 2 alone, every controller that there is.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 run /run
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
ip link set lo up 2>/dev/null
# An ordinary user, with a home.
echo 'tester:x:1001:1001::/home/tester:/bin/bash' >> /etc/passwd
echo 'tester:x:1001:' >> /etc/group
echo 'tester:*:19000:0:99999:7:::' >> /etc/shadow
mkdir -p /home/tester
chown 1001:1001 /home/tester

echo '+cpu +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
for check in /.vm/checks/root.* /.vm/checks/delegated.*; do
    [ -e "$check" ] && /.vm/check "$check"
done

over() {
    echo '@end'
    echo o > /proc/sysrq-trigger
    sleep 10
}
compgen -G '/.vm/checks/service.*' > /dev/null || over
for needed in /usr/lib/systemd/systemd /usr/lib/systemd/systemd-logind /usr/bin/dbus-daemon \
    /usr/lib/systemd/user/dbus.socket /usr/lib/x86_64-linux-gnu/security/pam_systemd.so; do
    if ! [ -e "$needed" ]; then
        for check in /.vm/checks/service.*; do
            echo "@check skip ${check#*/service.} there is no $needed (Debian: systemd, libpam-systemd, dbus-user-session)"
        done
        over
    fi
done

# systemd with nothing but the message bus, logins and our checks: the units of this machine are not for
# this one, and neither is what prepares hardware.
: > /etc/fstab
: > /etc/machine-id
rm -rf /etc/systemd/system /etc/systemd/user
mkdir -p /etc/systemd/system /var/lib/systemd/linger
touch /var/lib/systemd/linger/tester
for unit in systemd-{tmpfiles-setup,tmpfiles-setup-dev,tmpfiles-setup-dev-early,udevd,udev-trigger,hwdb-update,firstboot}.service \
    systemd-{sysusers,machine-id-commit,update-done,binfmt,random-seed,sysctl,modules-load,timesyncd}.service \
    systemd-{remount-fs,journal-flush,journal-catalog-update,update-utmp,pcrphase-sysinit}.service \
    systemd-{boot-system-token,network-generator}.service systemd-udevd-{control,kernel}.socket ldconfig.service \
    apparmor.service kmod-static-nodes.service networking.service proc-sys-fs-binfmt_misc.automount tmp.mount \
    dev-{hugepages,mqueue}.mount sys-kernel-{debug,tracing,config}.mount sys-fs-fuse-connections.mount; do
    ln -s /dev/null "/etc/systemd/system/$unit"
done
cat > /etc/systemd/system/checks.target << 'UNIT'
[Unit]
Requires=dbus.service systemd-logind.service checks.service
AllowIsolate=yes
UNIT
cat > /etc/systemd/system/checks.service << 'UNIT'
[Unit]
Requires=dbus.service systemd-logind.service
After=dbus.service systemd-logind.service
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/.vm/systemd
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
UNIT
umount /run
exec /usr/lib/systemd/systemd --unit=checks.target --log-level=err --show-status=no
