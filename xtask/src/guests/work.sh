#!/bin/busybox sh
# The program of the golden image: three writers that sync each file, its directory and a counter
# that is overwritten in place, and say so on the console; beside them writes that nobody waits for.
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
exec >/dev/console 2>&1
# The kernel writes back what is 0.3 s old.
echo 10 >/proc/sys/vm/dirty_writeback_centisecs
echo 30 >/proc/sys/vm/dirty_expire_centisecs

one() {
    yes "writer $1 file $2" | head -c $(($2 * 7919 % 65536 + 1)) >"/work/$1/$2" &&
        sync "/work/$1/$2" &&
        sync "/work/$1" &&
        printf '%09d\n' "$2" | dd of="/work/$1/count" bs=10 conv=notrunc,fsync 2>/dev/null
}

writer() {
    n=$(sed 's/^0*//' "/work/$1/count")
    n=${n:-0}
    while n=$((n + 1)); do
        if one "$1" "$n"; then
            echo "ACK $1 $n"
        else
            echo "FAILED $1 $n"
            sleep 1000
        fi
    done
}

noise() {
    while :; do
        for n in 1 2 3 4 5 6; do
            head -c 500000 /dev/urandom >"/noise/$n"
            usleep 100000
        done
        # Where the disk can be told that blocks are free.
        rm /noise/4
        fstrim / 2>/dev/null && echo TRIMMED
    done
}

# Says how many sectors the disk has, as often as that changes.
sizes() {
    while :; do
        now=$(cat /sys/block/vda/size)
        [ "$now" = "$size" ] || echo "SIZE $now"
        size=$now
        sleep 1
    done
}

echo BOOTED
noise &
[ -e /sys/block/vda ] && sizes &
for w in 1 2 3; do writer "$w" & done
wait
