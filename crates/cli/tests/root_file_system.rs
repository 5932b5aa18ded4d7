//! A root file system like that of Debian: what `restore` and `mount` give of it is the same, for rsync.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    collections::BTreeSet,
    fs,
    io::BufRead,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixListener,
    },
    path::Path,
    process::{Command, Stdio},
};

use support::{Desk, noise, unmount};

/// Links, set-id programs, devices, pipes, holes, attributes, lists of rights, owners, times and names as
/// they are in the root of a Debian system. `$1` is where it is made.
const ROOT: &str = r#"
umask 022
cd "$1"
mkdir -p usr/bin usr/lib usr/lib64 usr/share/doc/bash etc dev/shm proc sys run tmp root srv \
    var/log/journal var/lib/dpkg/info var/spool/cron home/ann/letters home/bob lost+found
ln -s usr/bin bin
ln -s usr/lib lib
ln -s ../run var/run
ln -s /etc/hostname etc/absolute
ln -s nowhere etc/dangling
echo host > etc/hostname
echo 'root:x:0:0:root:/root:/bin/bash' > etc/passwd
echo 'root:*:19000:0:99999:7:::' > etc/shadow
chgrp 42 etc/shadow
chmod 640 etc/shadow
: > etc/empty
# Programs: set-id bits, several names, capabilities.
echo su > usr/bin/su
chmod 4755 usr/bin/su
echo wall > usr/bin/wall
chgrp 5 usr/bin/wall
chmod 2755 usr/bin/wall
echo perl > usr/bin/perl
ln usr/bin/perl usr/bin/perl5.36.0
ln usr/bin/perl home/bob/perl
echo ping > usr/bin/ping
setcap cap_net_raw+ep usr/bin/ping
# Devices and pipes.
mknod -m 600 dev/console c 5 1
mknod -m 666 dev/null c 1 3
mknod -m 660 dev/sda b 8 0
chgrp 6 dev/sda
mknod -m 660 dev/large c 300 70000
mkfifo -m 600 run/initctl
ln dev/null dev/another
# Holes: in the middle, at the end, and nothing else.
truncate -s 20M var/log/lastlog
printf x | dd of=var/log/lastlog bs=1 seek=7340032 conv=notrunc status=none
printf start > var/log/faillog
truncate -s 3M var/log/faillog
truncate -s 1G var/log/hole
# Modes, owners, attributes and lists of rights.
chmod 1777 tmp dev/shm
chmod 700 root lost+found
chown -R 1000:1000 home/ann
chown -R 1001:1001 home/bob/perl home/bob
chmod 700 home/ann
chmod 000 home/ann/letters
ln -s /home home/bob/way
chown -h 1001:42 home/bob/way
chgrp 4 var/log/journal
chmod 2755 var/log/journal
setfacl -m g:4:rx,d:g:4:rx,d:u:1000:rwx var/log/journal
echo log > var/log/journal/system.journal
echo shared > srv/shared
chmod 640 srv/shared
setfacl -m u:1000:rw,g:1001:r srv/shared
setfattr -n user.comment -v 'of a user' srv/shared
setfattr -n user.empty srv/shared
setfattr -n trusted.mine -v secret var/lib/dpkg
setfattr -n user.directory -v yes home/bob
# Those of what is neither file nor directory: links of each kind, a pipe, devices.
setfattr -h -n trusted.link -v 'of the link' bin
setfattr -h -n trusted.link -v 'of one that leads nowhere' etc/dangling
for node in run/initctl dev/sda dev/console; do
    setfattr -n trusted.node -v "$node" $node
    setfacl -m u:1000:rw,g:1001:r $node
done
setfacl -m u:1000:--- dev/null
# Names.
touch "srv/$(printf 'line\nbreak')" "srv/$(printf 'no\377utf8')" srv/-dash 'srv/ space ' "srv/$(printf '%0255d' 7)"
# Times.
touch -d '1970-01-01 00:00:01.5 UTC' etc/passwd
touch -d '2040-02-29 12:00:00.123456789 UTC' etc/hostname
touch -h -d '2001-09-09 01:46:40.000000001 UTC' bin etc/dangling
touch -d '1995-05-05 UTC' dev/null run/initctl
"#;

/// True for what the tests need, or a sentence that says what is missing.
fn is_here() -> bool {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let is_root = rustix::process::geteuid().is_root();
    let missing = ["rsync", "setfacl", "setfattr", "setcap"].into_iter().find(|name| !has(name));
    match missing {
        _ if !is_root => println!("NOT TESTED: devices and owners need root"),
        Some(missing) => println!("NOT TESTED: there is no {missing}"),
        None => return true,
    }
    false
}

/// Makes the root file system; false where the file system below it takes no attributes.
fn plant(root: &Path) -> bool {
    fs::create_dir_all(root).unwrap();
    let made = Command::new("sh").args(["-ec", ROOT, "sh"]).arg(root).output().unwrap();
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    if said.contains("not supported") {
        println!("NOT TESTED: the file system has no attributes: {said}");
        return false;
    }
    assert!(made.status.success(), "{said}");
    drop(UnixListener::bind(root.join("run/socket")).unwrap());
    let more = "setfattr -n trusted.node -v socket run/socket; setfacl -m u:1001:rw run/socket";
    let more = Command::new("sh").args(["-ec", more]).current_dir(root).status().unwrap();
    assert!(more.success());
    fs::write(root.join("usr/lib/large"), noise(1, 3_000_000)).unwrap();
    for n in 0..1500 {
        let name = format!("var/lib/dpkg/info/package{n}.list");
        fs::write(root.join(name), format!("/usr/share/doc/package{n}\n").repeat(n % 90)).unwrap();
    }
    true
}

/// Names and values of the extended attributes of what a path names, of a link if it is one.
fn attributes(path: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut names, mut value) = ([0; 4096], [0; 4096]);
    let bytes = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut all: Vec<_> = names[..bytes]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let bytes = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            (String::from_utf8_lossy(name).into_owned(), value[..bytes].to_vec())
        })
        .collect();
    all.sort();
    all
}

/// Rsync would change nothing to make `other` like `root`.
#[track_caller]
fn is_the_same(root: &Path, other: &Path) {
    let slash = |path: &Path| format!("{}/", path.display());
    let said = Command::new("rsync")
        .args(["-aHAXnic", "--delete", "--devices", "--specials", "--numeric-ids"])
        .args([slash(root), slash(other)])
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success() && out.is_empty(), "{out}{said:?}");
    // It does not compare these.
    let kind = |path: &str| fs::symlink_metadata(other.join(path)).unwrap();
    assert!(kind("run/socket").file_type().is_socket());
    assert_eq!(kind("dev/sda").rdev(), fs::symlink_metadata(root.join("dev/sda")).unwrap().rdev());
    for name in ["bin", "etc/dangling", "run/initctl", "run/socket", "dev/sda", "dev/null"] {
        assert_eq!(attributes(&other.join(name)), attributes(&root.join(name)), "{name}");
    }
    let inodes: BTreeSet<u64> =
        ["usr/bin/perl", "usr/bin/perl5.36.0", "home/bob/perl"].map(|name| kind(name).ino()).into();
    assert_eq!(inodes.len(), 1);
}

#[test]
fn a_root_file_system_comes_back_the_same_by_restore_and_by_mount() {
    let desk = Desk::new();
    let root = desk.path("top/root");
    if !is_here() || !plant(&root) {
        return;
    }
    desk.ok("create archive a");
    desk.ok("backup a top/root --set root");
    desk.ok("restore a root -C out --preserve-privileged");
    let below = |out: &str| desk.path(out).join(root.strip_prefix("/").unwrap());
    is_the_same(&root, &below("out"));
    desk.ok("put a top -r top");
    desk.ok("get a top -C got --preserve-privileged");
    is_the_same(&root, &desk.path("got/root"));
    for name in ["var/log/lastlog", "var/log/faillog", "var/log/hole"] {
        let blocks = |root: &Path| fs::metadata(root.join(name)).unwrap().blocks();
        assert!(blocks(&below("out")) <= blocks(&root), "{name} has its holes");
    }
    // In place, when something of each kind differs.
    let spoilt = below("out");
    let spoil = "cd \"$1\"; rm dev/null; echo x > dev/null; setfacl -b srv/shared; rm bin; chmod 755 usr/bin/su; \
                 echo more >> etc/passwd; setfattr -x trusted.mine var/lib/dpkg; rm usr/bin/perl; \
                 echo other > usr/bin/perl; chown 7 home/ann; touch tmp/new; \
                 setfattr -h -x trusted.link etc/dangling; setfacl -b run/initctl";
    let done = Command::new("sh").args(["-ec", spoil, "sh"]).arg(&spoilt).status().unwrap();
    assert!(done.success());
    let said = desk.run("restore a root -C out --in-place --delete --preserve-privileged");
    assert!(said.status.success() && said.err.contains("home/ann' belonged to user 7"), "{said:?}");
    is_the_same(&root, &spoilt);
    if !Path::new("/dev/fuse").exists() {
        println!("NOT TESTED: mounting needs /dev/fuse");
        return;
    }
    fs::create_dir(desk.path("m")).unwrap();
    let mut mount = desk.command("mount a m").stdout(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(mount.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    let latest = desk.path("m/root/latest").join(root.strip_prefix("/").unwrap());
    let same = std::panic::catch_unwind(|| is_the_same(&root, &latest));
    unmount(&desk.path("m"));
    assert!(mount.wait().unwrap().success());
    same.unwrap();
}
