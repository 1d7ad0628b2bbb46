#!/bin/busybox sh
# The first stage: this machine's root file system over 9p, with what is written kept in memory.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
mount -t sysfs sys /sys
# Each module after what it needs; what a kernel has otherwise is not there, and order may differ.
for round in 1 2 3; do
    for module in /modules/*; do insmod "$module" 2>/dev/null; done
done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=1048576 root /host || echo "no root file system"
mount -t tmpfs -o mode=755 rw /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new || echo "no overlay"
cp -r /vm /new/.vm
umount /proc /sys
mount --move /dev /new/dev
exec switch_root /new /.vm/plain
