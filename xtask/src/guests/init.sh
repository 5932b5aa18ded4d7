#!/bin/busybox sh
# The first program of the virtual machine: finds the disk that the kernel's command line names,
# and starts what is on it.
/bin/busybox --install -s /bin
export PATH=/bin:/sbin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
exec >/dev/console 2>&1
told() { sed -n "s/.*onefold\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
modprobe virtio_pci
disk=$(told disk)
if [ "$disk" = nbd0 ]; then
    modprobe virtio_net
    modprobe nbd
    ip link set lo up
    ip addr add 10.0.2.15/24 dev eth0
    ip link set eth0 up
    nbd-client -connections 2 -name "$(told export)" 10.0.2.100 10809 /dev/nbd0
else
    modprobe virtio_blk
fi
tries=0
until mount -t ext4 "/dev/$disk" /newroot; do
    tries=$((tries + 1))
    [ "$tries" -lt 20 ] || { echo "NO DISK"; poweroff -f; }
    sleep 1
done
exec switch_root /newroot /sbin/init
