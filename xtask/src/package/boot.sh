# The packaged units under a systemd of their own, used as docs/how-to/systemd.md says. Runs inside as the
# superuser, when the system has started.
set -Eeuo pipefail
trap '
    echo "FAILED: line $LINENO, from ${BASH_LINENO[*]}: $BASH_COMMAND"
    journalctl --boot --no-pager --no-hostname --lines=60
' ERR
export HOME=/root
cd /root

# What must not succeed.
fails() {
    if "$@" >failed 2>&1; then
        echo "this should have failed: $*"
        return 1
    fi
}
# Waits until a command succeeds.
within() {
    local seconds=$1
    shift
    for _ in $(seq $((seconds * 5))); do if "$@"; then return; fi; sleep 0.2; done
    "$@"
}
# How often the journal of a unit has a text.
count() { journalctl --sync; journalctl --boot --output=cat --unit="$1" | grep -cF -e "$2" || true; }
# The journal of a unit has a text.
says() { [ "$(count "$1" "$2")" -gt 0 ]; }
# Settings of a unit's own, as by `systemctl edit`, from standard input.
drop_in() {
    mkdir -p "/etc/systemd/system/$1.d"
    cat >"/etc/systemd/system/$1.d/own.conf"
    systemctl daemon-reload
}
main_process() { systemctl show --property=MainPID --value "$1"; }
uri() { echo "nbd+unix:///$2?socket=/run/onefold/$1.sock"; }
# The first code block after a line of a document, which is the one on systemd.
of_document() {
    sed -n "/$1/,\$p" "${2:-/usr/share/doc/onefold/docs/how-to/systemd.md}" | sed '1,/^```text/d;/^```/,$d'
}

echo "==> a store that is not there: the service says so, tries again for a while, and has failed then"
fails systemctl start onefold@srv-absent
within 5 says onefold@srv-absent "onefold: there is nothing at /srv/absent"
nbdinfo --size "$(uri srv-absent v)" >absent 2>&1 &
waiting=$!

echo "==> a store that is served to the first client"
disk=srv-disk.onefold
service=onefold@$disk.service
onefold create block /srv/disk.onefold --size 64M --no-encryption
onefold volume create /srv/disk.onefold vm1 --size 100M
onefold volume create /srv/disk.onefold vm2 --size 100M
fails systemctl start "$service"
within 5 says "$service" "no permission to open /srv/disk.onefold"
systemctl stop "$service" onefold@$disk.socket
chown onefold: /srv/disk.onefold
systemctl enable --now "$(systemd-escape --path --template=onefold@.socket /srv/disk.onefold)"
fails systemctl is-active "$service"
fails runuser -u nobody -- nbdinfo --size "$(uri $disk vm1)"
head -c 8M /dev/urandom >data
nbdcopy --flush data "$(uri $disk vm1)"
holds() { nbdcopy "$(uri "$1" vm1)" back; cmp -n "$(stat -c %s data)" data back; }
holds $disk
systemctl is-active "$service"
systemctl show --property=StatusText --value "$service" | grep -F "serving 2 volumes of /srv/disk.onefold"

echo "==> root asks and commands it"
onefold volume list /srv/disk.onefold | grep -F vm2
onefold status /srv/disk.onefold --json | grep -F '"volumes"' >/dev/null
onefold status /srv/disk.onefold --check

echo "==> reload, restart, SIGKILL, stop"
before=$(main_process "$service")
systemctl reload "$service"
within 5 says "$service" SIGHUP
[ "$(main_process "$service")" = "$before" ]
systemctl restart "$service"
holds $disk
killed=$(main_process "$service")
[ "$killed" -gt 1 ]
kill -KILL "$killed"
again() { local now; now=$(main_process "$service"); [ "$now" -gt 1 ] && [ "$now" != "$killed" ]; }
within 20 again
holds $disk
[ "$(systemctl show --property=NRestarts --value "$service")" = 1 ]
systemctl stop "$service"
says "$service" "closed /srv/disk.onefold"
[ "$(systemctl show --property=Result --value "$service")" = success ]
[ "$(systemctl show --property=ExecMainStatus --value "$service")" = 0 ]
onefold check /srv/disk.onefold
holds $disk

echo "==> options: who may do what, an audit log in the journal, figures"
echo 'user:root write *' >/etc/onefold.access
echo 'OPTIONS="--access=/etc/onefold.access --audit=journal"' >/etc/default/onefold
drop_in "$service" <<'END'
[Service]
ExecStart=
ExecStart=/usr/bin/onefold serve $OPTIONS --http unix:%t/onefold/%i/http.sock -- %f
END
systemctl restart "$service"
fails nbdinfo --is readonly "$(uri $disk vm1)"
echo 'user:root read *' >/etc/onefold.access
systemctl reload "$service"
within 5 nbdinfo --is readonly "$(uri $disk vm1)"
journalctl --sync
journalctl --boot --output=cat ONEFOLD_AUDIT=1 | grep -F '"right":"read"' >/dev/null
curl --silent --fail --max-time 10 --unix-socket /run/onefold/$disk/http.sock http://localhost/metrics |
    grep '^onefold_build_info' >/dev/null
rm /etc/default/onefold
systemctl restart "$service"

echo "==> snapshots of the night: served, not served, and missed"
nightly=onefold-nightly@$disk
fails systemctl start $nightly
says $nightly "/etc/default/onefold-nightly"
echo 'VOLUMES="vm1 vm2"' >/etc/default/onefold-nightly
systemctl start $nightly
systemctl stop "$service" onefold@$disk.socket
systemctl start $nightly
onefold snapshot list /srv/disk.onefold | grep -c " vm[12]@$(LC_ALL=C date +%a)$" | grep -x 2
touch -d '2 days ago' /var/lib/systemd/timers/stamp-$nightly.timer
systemctl enable --now "$(systemd-escape --path --template=onefold-nightly@.timer /srv/disk.onefold)"
three() { [ "$(count $nightly "took snapshots")" = 3 ]; }
within 20 three
fails systemctl start onefold-nightly@srv-absent
says onefold-nightly@srv-absent "onefold: there is nothing at /srv/absent"
systemctl start onefold@$disk.socket

echo "==> an encrypted store, whose key is a credential"
sealed=srv-sealed.onefold
onefold create block /srv/sealed.onefold --size 64M --key /root/disk.key
onefold volume create /srv/sealed.onefold vm1 --size 100M --key /root/disk.key
id=$(onefold key list /srv/sealed.onefold | sed -n 's/^id //p')
chown onefold: /srv/sealed.onefold
fails systemctl start onefold@$sealed
within 5 says onefold@$sealed "it is encrypted: say where its key is"
systemctl stop onefold@$sealed.service onefold@$sealed.socket
systemd-creds encrypt --name="onefold.$id" /root/disk.key /etc/onefold-disk.cred
key="LoadCredentialEncrypted=onefold.$id:/etc/onefold-disk.cred"
echo -e "[Service]\n$key" | drop_in onefold@$sealed.service
echo 'VOLUMES=vm1' >/etc/onefold-nightly-sealed
echo -e "[Service]\n$key\nEnvironmentFile=/etc/onefold-nightly-sealed" |
    drop_in onefold-nightly@$sealed.service
mv disk.key elsewhere
cp --preserve=all --sparse=always /srv/sealed.onefold older
systemctl start onefold@$sealed
nbdcopy --flush data "$(uri $sealed vm1)"
systemctl stop onefold@$sealed.service onefold@$sealed.socket
systemctl start onefold-nightly@$sealed
systemctl start onefold@$sealed
holds $sealed
fails says onefold@$sealed "keys are not locked in memory"
echo "==> an older image of it is known by the service"
systemctl stop onefold@$sealed.service onefold@$sealed.socket
mv /srv/sealed.onefold newer
cp --preserve=all --sparse=always older /srv/sealed.onefold
fails systemctl start onefold@$sealed
within 5 says onefold@$sealed "accept-older"
systemctl stop onefold@$sealed.service onefold@$sealed.socket
mv newer /srv/sealed.onefold
systemctl enable onefold@$sealed.service

echo "==> a witness on another disk, then on another machine: the whole host was put back, and that is noticed"
install -d -o onefold -g onefold -m 700 /mnt/other-disk/witness
install -d -m 755 /etc/onefold
echo 'witness = "/etc/onefold/witness"' >/etc/onefold.toml
echo 'OPTIONS=--config=/etc/onefold.toml' >/etc/default/onefold
witness() { cat >/etc/onefold/witness; chmod 755 /etc/onefold/witness; }
of_how_to() { of_document "$2" "/usr/share/doc/onefold/docs/how-to/$1.md"; }
reaches() { of_how_to systemd '^  lets it reach nothing' | sed "s/192.0.2.10/127.0.0.1/"; }
state=/var/lib/onefold/$sealed
# The store and what the service noted of it go on while the witness hears of it, and are put back then.
put_back() {
    # Whoever starts it so often has to.
    local again="systemctl reset-failed onefold@$sealed.service onefold@$sealed.socket"
    systemctl stop onefold@$sealed.service onefold@$sealed.socket
    cp --archive --sparse=always /srv/sealed.onefold before
    cp --archive $state state.before
    $again
    systemctl start onefold@$sealed
    onefold volume create /srv/sealed.onefold "$1" --size 1M
    systemctl stop onefold@$sealed.service onefold@$sealed.socket
    cp --archive --sparse=always /srv/sealed.onefold newer
    cp --archive $state state.newer
    cp --archive --sparse=always before /srv/sealed.onefold
    rm -r $state
    mv state.before $state
    known=$(count onefold@$sealed "the witness knows")
    $again
    fails systemctl start onefold@$sealed
    more() { [ "$(count onefold@$sealed "the witness knows")" -gt "$known" ]; }
    within 5 more
    systemctl stop onefold@$sealed.service onefold@$sealed.socket
    cp --archive --sparse=always newer /srv/sealed.onefold
    rm -r $state
    mv state.newer $state
    $again
    systemctl start onefold@$sealed
    holds $sealed
    onefold status /srv/sealed.onefold --check
}
of_how_to encryption '^On another disk, as' | witness
{ echo "[Service]"; echo "$key"; reaches | sed 1d; } | drop_in onefold@$sealed.service
systemctl restart onefold@$sealed
within 5 says onefold@$sealed "the witness knows nothing of the store"
put_back vm2
test -s "/mnt/other-disk/witness/$id"

useradd --create-home --shell /bin/sh witness
ssh-keygen -q -t ed25519 -N '' -f /etc/onefold/witness.key
chown onefold: /etc/onefold/witness.key
install -d -o witness -g witness -m 700 ~witness/.ssh /srv/witness /srv/witness/host1
line=$(of_how_to encryption '^There, the line of the key')
echo "${line%ssh-ed25519*}$(cat /etc/onefold/witness.key.pub)" >~witness/.ssh/authorized_keys
chown witness: ~witness/.ssh/authorized_keys
echo "other-machine $(cat /etc/ssh/ssh_host_ed25519_key.pub)" >/etc/onefold/known_hosts
echo "127.0.0.1 other-machine" >>/etc/hosts
mkdir -p /run/sshd
/usr/sbin/sshd -o ListenAddress=127.0.0.1
of_how_to encryption '^On another machine:' | witness
systemctl reset-failed onefold@$sealed.service onefold@$sealed.socket
systemctl restart onefold@$sealed
put_back vm3
test -s "/srv/witness/host1/$id"
rm /etc/default/onefold
systemctl reset-failed onefold@$sealed.service onefold@$sealed.socket
systemctl restart onefold@$sealed

echo "==> backups of the night, and the care of the archive"
onefold create archive /srv/backups --no-encryption
fails systemctl start onefold-backup@srv-backups
says onefold-backup@srv-backups "/etc/default/onefold-backup"
echo 'PATHS="/etc"' >/etc/default/onefold-backup
systemctl start onefold-backup@srv-backups
onefold restore /srv/backups "$(uname -n)" -C out --preserve-privileged
diff -r --no-dereference /etc out/etc
systemctl start onefold-keep@srv-backups
says onefold-keep@srv-backups "nothing needs you"
for name in backup keep; do
    systemctl enable --now "$(systemd-escape --path --template=onefold-$name@.timer /srv/backups)"
    [ -n "$(systemctl show --property=NextElapseUSecRealtime --value onefold-$name@srv-backups.timer)" ]
    fails systemctl start onefold-$name@srv-absent
    says onefold-$name@srv-absent "onefold: there is nothing at /srv/absent"
done
systemctl list-timers --no-pager | grep -F onefold
echo 'CHECK="--max-age 1s"' >/etc/default/onefold-keep
sleep 2
fails systemctl start onefold-keep@srv-backups
rm /etc/default/onefold-keep
printf '[[keep]]\nset = "*"\nlast = 1\n' >policy.toml
of_document '^needs no timer' | head -n 1 | bash -eux
systemctl start onefold-backup@srv-backups
systemctl start onefold-keep@srv-backups
onefold snapshots /srv/backups --json | grep -c '"id"' | grep -x 1

echo "==> an encrypted archive"
onefold create archive /srv/vault --key /root/vault.key
id=$(onefold key list /srv/vault | sed -n 's/^id //p')
for name in backup keep; do
    echo -e "[Service]\nLoadCredential=onefold.$id:/root/vault.key" | drop_in onefold-$name@srv-vault.service
    systemctl start onefold-$name@srv-vault
done
onefold snapshots /srv/vault --key /root/vault.key | grep -F "$(uname -n)" >/dev/null

echo "==> a dump of a database, by the service of the documents"
useradd postgres
printf '#!/bin/sh\n[ "$(id -un)" = postgres ] && echo "dump of $1"\n' >/usr/local/bin/pg_dump
chmod 755 /usr/local/bin/pg_dump
of_document '^service that you write' >/etc/systemd/system/onefold-dump.service
of_document '^`.etc.systemd.system.onefold-dump.timer`:' >/etc/systemd/system/onefold-dump.timer
systemctl daemon-reload
systemctl enable --now onefold-dump.timer
systemctl start onefold-dump
onefold cat /srv/backups shop /shop.sql | grep -x "dump of shop"
printf '#!/bin/sh\necho half; exit 1\n' >/usr/local/bin/pg_dump
fails systemctl start onefold-dump
onefold cat /srv/backups shop /shop.sql | grep -x "dump of shop"

echo "==> an archive that is served: the services of the night run as its user"
served=srv-served
onefold create archive /srv/served --no-encryption
chown -R onefold: /srv/served
systemctl enable --now onefold@$served.socket
mkdir -p /home/somebody
echo secret >/home/somebody/file
chown -R 1234:1234 /home/somebody
chmod 700 /home/somebody
echo 'PATHS="/etc /home"' >/etc/default/onefold-backup
fails systemctl start onefold-backup@$served
of_document '^.systemctl edit. opens' | drop_in onefold-backup@$served.service
echo -e "[Service]\nUser=onefold" | drop_in onefold-keep@$served.service
systemctl start onefold@$served.service
systemctl start onefold-backup@$served onefold-keep@$served
says onefold@$served "stored snapshot"
onefold restore /srv/served "$(uname -n)" -C served --preserve-privileged
diff -r --no-dereference /etc served/etc
[ "$(stat -c %u:%a served/home/somebody)" = 1234:700 ]
cmp /home/somebody/file served/home/somebody/file

echo "==> gateway and worker of the cluster engine, each on a folder"
for name in gateway worker; do
    pool=/var/lib/onefold-$name/one/pool
    install -d -o onefold -g onefold -m 700 /var/lib/onefold-$name /var/lib/onefold-$name/one
    onefold create cluster $pool --no-encryption
    onefold volume create $pool vm1 --size 100M
    chown -R onefold: $pool
    echo "STORE=$pool" >/etc/default/onefold-$name-one
done
groupadd guests
socket=/run/onefold-gateway/one/nbd.sock
echo "OPTIONS=--nbd=unix:$socket,mode=0660,group=guests" >>/etc/default/onefold-gateway-one
fails systemctl start onefold-gateway@one
says onefold-gateway@one "this user is not in group"
echo -e "[Service]\nSupplementaryGroups=guests" | drop_in onefold-gateway@one.service
systemctl start onefold-gateway@one
nbdcopy --flush data "nbd+unix:///vm1?socket=$socket"
[ "$(stat -c %G:%a $socket)" = guests:660 ]
systemctl reload onefold-gateway@one
within 5 says onefold-gateway@one SIGHUP
echo 'OPTIONS=--cold=1' >>/etc/default/onefold-worker-one
systemctl start onefold-worker@one
within 5 says onefold-worker@one deduplicating
for name in gateway worker; do
    systemctl stop onefold-$name@one
    [ "$(systemctl show --property=Result --value onefold-$name@one)" = success ]
    onefold check /var/lib/onefold-$name/one/pool
done

echo "==> the store that is not there: who waited for it is sent away, and it can be made now"
failed() { [ "$(systemctl is-failed onefold@srv-absent.service)" = failed ]; }
within 300 failed
fails wait $waiting
onefold create block /srv/absent --size 64M --no-encryption
chown onefold: /srv/absent
systemctl reset-failed onefold@srv-absent.service onefold@srv-absent.socket
systemctl start onefold@srv-absent
systemctl stop onefold@srv-absent.service onefold@srv-absent.socket
