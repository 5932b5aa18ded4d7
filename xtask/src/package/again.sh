# After the next start of the system: what was enabled is there by itself.
set -Eeuo pipefail
trap '
    echo "FAILED: line $LINENO, from ${BASH_LINENO[*]}: $BASH_COMMAND"
    journalctl --boot --no-pager --no-hostname --lines=60
' ERR
cd /root
echo "==> started once more: enabled sockets, services and timers are there"
for unit in onefold@srv-disk.onefold.socket onefold@srv-sealed.onefold.service \
    onefold-nightly@srv-disk.onefold.timer onefold-backup@srv-backups.timer onefold-keep@srv-backups.timer \
    onefold-dump.timer; do
    systemctl is-active --quiet "$unit"
done
for store in srv-disk.onefold srv-sealed.onefold; do
    nbdcopy "nbd+unix:///vm1?socket=/run/onefold/$store.sock" back
    cmp -n "$(stat -c %s data)" data back
done
systemctl list-units --failed --plain --no-legend 'onefold*' >failed
cat failed
[ ! -s failed ]
