//! Files of archives and cluster folders, and the locks on them: rules 1, 2, 3 and 16.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use onefold_archive::NodeLabel;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{
    actors::{STRANGER, Street},
    support::{Desk, Said, noise, overwrite},
};

/// Generous: what hangs, hangs for good.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a command that must end by itself.
#[track_caller]
fn ends(command: &mut Command) -> Said {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || read_all(&mut out));
    let err = std::thread::spawn(move || read_all(&mut err));
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{command:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Said { status, out: out.join().unwrap(), err: err.join().unwrap() }
}

fn read_all(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The verb did its work, or failed with one sentence.
#[track_caller]
fn one_sentence(what: &str, said: &Said) {
    if !said.status.success() {
        assert_eq!(said.status.code(), Some(1), "{what}: {said:?}");
        // A verb that waits shows how far it is.
        let warns =
            |line: &&str| line.starts_with("onefold: warning: ") || line.starts_with("storing: ");
        let sentences = said.err.lines().filter(|line| !warns(line)).count();
        assert!(sentences == 1 && said.err.contains("onefold: "), "{what}: {said:?}");
    }
}

#[test]
#[ignore = "needs root"]
fn rule_03_a_second_user_who_holds_every_lock_beside_a_socket_stalls_no_server() {
    let (desk, street) = (Desk::new(), Street::new());
    desk.store_with_volume("a");
    // A directory that others can enter, and in which they may even make files.
    let places = street.home("places", 0);
    fs::set_permissions(&places, fs::Permissions::from_mode(0o1777)).unwrap();
    let serve = format!("a --nbd unix:{}", places.join("s").display());
    desk.serve(&serve).kill();
    let _locker = Locker::start(&street, "places");
    let serving = desk.serve(&serve);
    assert!(serving.terminate().0.success());
}

/// Everything below a directory: bytes, times, modes and links.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, (u64, u32, u64, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut ways = vec![root.to_owned()];
    while let Some(path) = ways.pop() {
        let is = fs::symlink_metadata(&path).unwrap();
        if is.is_dir() {
            ways.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let bytes = if is.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        found.insert(path, (is.ino(), is.mode(), is.nlink(), is.mtime(), is.mtime_nsec(), bytes));
    }
    found
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// An archive with two streams, an index, a volume, and counts; its last change is not vouched for.
fn archive(desk: &Desk, name: &str) {
    fs::write(desk.path("content"), noise(1, 300_000)).unwrap();
    desk.ok(&format!("create archive {name}"));
    desk.ok(&format!("put {name} one content"));
    desk.ok(&format!("put {name} two content"));
    desk.ok(&format!("volume create {name} v --size 1M"));
    desk.ok(&format!("rm {name} two"));
    desk.ok(&format!("gc {name}"));
    fs::File::options()
        .write(true)
        .open(desk.path(name).join("vouched"))
        .unwrap()
        .set_len(0)
        .unwrap();
}

const READERS: [&str; 8] = [
    "ls a",
    "ls a --json",
    "get a one",
    "get a one --verify",
    "status a",
    "status a",
    "check a",
    "volume list a",
];

#[test]
fn rule_01_readers_write_nothing() {
    let desk = Desk::new();
    archive(&desk, "a");
    let before = snapshot(&desk.path("a"));
    for verb in READERS {
        let said = ends(&mut desk.command(verb));
        assert!(said.status.success(), "{verb}: {said:?}");
        assert!(snapshot(&desk.path("a")) == before, "{verb} changed something");
    }
}

/// The system calls of a reader.
fn calls_of(desk: &Desk, verb: &str) -> String {
    let calls = "trace=openat,openat2,open,creat,pwrite64,pwritev,pwritev2,ftruncate,truncate,\
                 rename,renameat,renameat2,unlink,unlinkat,link,linkat,symlink,symlinkat,mkdir,\
                 mkdirat,rmdir,mknod,mknodat,fallocate,fchmod,fchmodat,chmod,chown,fchown,fchownat,\
                 utimensat,setxattr,fsetxattr,fsync,fdatasync,io_uring_setup,copy_file_range,\
                 sendfile";
    let trace = desk.path("trace");
    let mut command = Command::new("strace");
    command
        .args(["-f", "-y", "-e", calls, "-o"])
        .arg(&trace)
        .arg(env!("CARGO_BIN_EXE_onefold"))
        .args(verb.split_whitespace());
    let said = ends(command.current_dir(trace.parent().unwrap()));
    assert!(said.status.success(), "{verb}: {said:?}");
    fs::read_to_string(trace).unwrap()
}

fn asks_for_nothing_that_writes(verb: &str, calls: &str) {
    for call in calls
        .lines()
        .filter(|call| !call.contains("+++") && !call.contains("---") && !call.contains("resumed>"))
    {
        let reads = ["openat(", "openat2(", "open(", "fsync(", "fdatasync("]
            .iter()
            .any(|name| call.contains(name));
        let writes = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_TMPFILE"]
            .iter()
            .any(|flag| call.contains(flag));
        assert!(reads && !writes, "{verb}: {call}");
    }
}

#[test]
fn rule_01_readers_of_a_cluster_folder_write_nothing_whether_it_was_closed_or_not() {
    let desk = Desk::new();
    fs::write(desk.path("content"), noise(1, 300_000)).unwrap();
    desk.ok("create cluster a");
    desk.ok("volume create a v --size 64M");
    desk.ok("put a one content");
    let readers = ["status a", "check a", "ls a", "volume list a", "get a one"];
    let untouched = || {
        let before = snapshot(&desk.path("a"));
        for verb in readers {
            asks_for_nothing_that_writes(verb, &calls_of(&desk, verb));
            assert!(snapshot(&desk.path("a")) == before, "{verb} changed something");
        }
    };
    untouched();
    let serving = desk.serve("a");
    crate::support::qemu_io(&desk.uri("a", "v"), &["write -P 1 0 64k", "flush"]);
    serving.kill();
    untouched();
    let said = desk.ok("get a one --output copy");
    assert!(
        fs::read(desk.path("copy")).unwrap() == fs::read(desk.path("content")).unwrap(),
        "{said}"
    );
}

#[test]
fn rule_01_readers_ask_for_nothing_that_writes_and_sync_a_tail_that_nobody_vouched_for() {
    let desk = Desk::new();
    archive(&desk, "a");
    for verb in READERS {
        let calls = calls_of(&desk, verb);
        asks_for_nothing_that_writes(verb, &calls);
        let synced = calls.lines().any(|call| call.contains("sync(") && call.contains("/a/log-"));
        assert!(synced, "{verb} believed what may not be durable: {calls}");
    }
}

#[test]
#[ignore = "needs root"]
fn rule_01_readers_need_no_right_to_write() {
    let (desk, street) = (Desk::new(), Street::new());
    archive(&desk, "a");
    copy(&desk.path("a"), &street.path("a"), 0o755, 0o644, 0);
    let before = snapshot(&street.path("a"));
    for verb in READERS {
        let said = ends(&mut street.onefold(STRANGER, verb));
        assert!(said.status.success(), "{verb}: {said:?}");
    }
    assert!(snapshot(&street.path("a")) == before);
}

#[test]
#[ignore = "needs root"]
fn rule_01_scrub_notes_damage_in_the_users_own_archive_only() {
    let (desk, street) = (Desk::new(), Street::new());
    archive(&desk, "a");
    overwrite(&desk.path("a/segment-00000001"), 200_000, &[1; 40_000]);
    copy(&desk.path("a"), &street.path("a"), 0o755, 0o644, STRANGER);
    let before = snapshot(&street.path("a"));
    let said = ends(&mut street.onefold(0, "scrub a"));
    assert!(!said.status.success() && said.out.contains("problem"), "{said:?}");
    assert!(snapshot(&street.path("a")) == before);
    for verb in ["rm a one", "gc a", "repair a", "put a three /etc/passwd"] {
        let said = ends(&mut street.onefold(0, verb));
        one_sentence(verb, &said);
        assert!(!said.status.success() && said.err.contains("--owner"), "{verb}: {said:?}");
    }
    assert!(snapshot(&street.path("a")) == before);
    // The operator's word.
    let said = ends(&mut street.onefold(0, &format!("--owner {STRANGER} rm a one")));
    assert!(said.status.success(), "{said:?}");
}

/// Copies a flat directory for a user.
fn copy(from: &Path, to: &Path, directory: u32, file: u32, user: u32) {
    fs::create_dir(to).unwrap();
    for name in names_in(from) {
        fs::copy(from.join(&name), to.join(&name)).unwrap();
        fs::set_permissions(to.join(&name), fs::Permissions::from_mode(file)).unwrap();
        std::os::unix::fs::chown(to.join(&name), Some(user), Some(user)).unwrap();
    }
    fs::set_permissions(to, fs::Permissions::from_mode(directory)).unwrap();
    std::os::unix::fs::chown(to, Some(user), Some(user)).unwrap();
}

/// Things that may stand where a file was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trap {
    Link,
    HardLink,
    Fifo,
    Socket,
    /// `/dev/zero`, for the superuser only.
    Device,
    Directory,
}

impl Trap {
    fn all() -> Vec<Trap> {
        let all =
            [Trap::Link, Trap::HardLink, Trap::Fifo, Trap::Socket, Trap::Directory, Trap::Device];
        let root = rustix::process::geteuid().is_root();
        all.into_iter().filter(|trap| root || *trap != Trap::Device).collect()
    }

    /// Puts it in the place of a file; `victim` has the file's bytes, so that nothing else tells
    /// them apart.
    fn set(self, path: &Path, victim: &Path) {
        let _ = fs::remove_file(victim);
        match fs::copy(path, victim) {
            Ok(_) => fs::remove_file(path).unwrap(),
            Err(_) => fs::write(victim, [7; 100]).unwrap(),
        }
        match self {
            Trap::Link => symlink(victim, path).unwrap(),
            Trap::HardLink => fs::hard_link(victim, path).unwrap(),
            Trap::Fifo => {
                mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap()
            }
            Trap::Device => mknodat(
                CWD,
                path,
                FileType::CharacterDevice,
                Mode::from_raw_mode(0o600),
                rustix::fs::makedev(1, 5),
            )
            .unwrap(),
            // The name of a socket is short: made elsewhere, and moved.
            Trap::Socket => {
                static MADE: AtomicU32 = AtomicU32::new(0);
                let number = MADE.fetch_add(1, Ordering::Relaxed);
                let short = std::env::temp_dir().join(format!("o{}-{number}", std::process::id()));
                drop(UnixListener::bind(&short).unwrap());
                let moved = Command::new("mv").arg(&short).arg(path).status().unwrap();
                assert!(moved.success());
            }
            Trap::Directory => fs::create_dir(path).unwrap(),
        }
    }
}

fn restore(pristine: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    copy(pristine, to, 0o700, 0o600, rustix::process::geteuid().as_raw());
}

#[test]
fn rule_02_no_file_of_an_archive_leads_elsewhere() {
    let desk = Desk::new();
    archive(&desk, "pristine");
    // The archive is copied often.
    fs::File::options()
        .write(true)
        .open(desk.path("pristine/reserve"))
        .unwrap()
        .set_len(8192)
        .unwrap();
    let victim = desk.path("victim");
    let mut files = names_in(&desk.path("pristine"));
    files.push("nodes".into());
    for name in &files {
        for trap in Trap::all() {
            for verb in ["ls a", "get a one", "check a", "rm a one", "put a three content", "gc a"]
            {
                let what = format!("{verb} with {name} as {trap:?}");
                restore(&desk.path("pristine"), &desk.path("a"));
                trap.set(&desk.path("a").join(name), &victim);
                let before = fs::read(&victim).unwrap();
                let said = ends(&mut desk.command(verb));
                one_sentence(&what, &said);
                assert!(fs::read(&victim).unwrap() == before, "{what}: the victim was changed");
                if name.as_str() == "label" && trap != Trap::HardLink {
                    assert!(!said.status.success(), "{what}: {said:?}");
                }
            }
        }
    }
}

#[test]
#[ignore = "needs root"]
fn rule_02_the_bucket_of_another_user_is_read_and_nothing_in_it_is_changed() {
    let street = Street::new();
    let home = street.home("home", STRANGER);
    let ok = |said: Said| assert!(said.status.success(), "{said:?}");
    let store = "bucket:home/b";
    ok(ends(&mut street.onefold(STRANGER, &format!("create archive {store}"))));
    fs::write(home.join("file"), "content").unwrap();
    std::os::unix::fs::chown(home.join("file"), Some(STRANGER), Some(STRANGER)).unwrap();
    ok(ends(&mut street.onefold(STRANGER, &format!("put {store} file home/file"))));
    assert_eq!(fs::metadata(home.join("b")).unwrap().mode() & 0o777, 0o700);
    // A folder leads to a directory of root's, in which his verbs would make and remove files.
    let own = street.home("own", 0);
    let _ = fs::rename(home.join("b/data"), home.join("b/aside"));
    fs::create_dir(home.join("b/data")).unwrap();
    for leads in [false, true] {
        if leads {
            fs::remove_dir(home.join("b/data")).unwrap();
            symlink(&own, home.join("b/data")).unwrap();
        }
        let before = snapshot(&own);
        for verb in
            ["gc S --trash 0", "put S x home/file", "backup S home/file --set s", "rm S file"]
        {
            let verb = verb.replace(" S", &format!(" {store}"));
            let said = ends(&mut street.onefold(0, &verb));
            one_sentence(&verb, &said);
            assert!(!said.status.success(), "{verb}: {said:?}");
            assert!(snapshot(&own) == before, "{verb}");
        }
        ok(ends(&mut street.onefold(0, &format!("ls {store}"))));
    }
}

#[test]
fn rule_02_the_list_of_nodes_is_short_and_leads_nowhere() {
    let desk = Desk::new();
    desk.ok("create archive a --nodes n0,n1,n2 --code 3,2");
    let list = desk.path("a/nodes");
    let text = fs::read(&list).unwrap();
    // Too long.
    fs::write(&list, vec![b'\n'; 70_000]).unwrap();
    desk.fails("ls a", 1, &["64 KiB"]);
    fs::write(&list, b"n0\n".repeat(20_000)).unwrap();
    desk.fails("ls a", 1, &["20000 nodes"]);
    fs::write(&list, &text).unwrap();
    // A new list is written to a name that was prepared.
    fs::write(desk.path("victim"), "precious").unwrap();
    symlink(desk.path("victim"), desk.path("a/nodes.new")).unwrap();
    fs::remove_dir_all(desk.path("n1")).unwrap();
    let said = ends(&mut desk.command("node replace a 1 n3"));
    one_sentence("rebuild", &said);
    assert_eq!(fs::read(desk.path("victim")).unwrap(), b"precious");
}

#[test]
#[ignore = "needs root"]
fn rule_02_a_list_of_nodes_names_directories_of_its_owner_only() {
    let street = Street::new();
    let said = ends(&mut street.onefold(0, "create archive mine --nodes n0,n1,n2 --code 3,2"));
    assert!(said.status.success(), "{said:?}");
    // A stranger's list that names the superuser's nodes.
    let trap = street.home("trap", STRANGER);
    fs::copy(street.path("mine/nodes"), trap.join("nodes")).unwrap();
    std::os::unix::fs::chown(trap.join("nodes"), Some(STRANGER), Some(STRANGER)).unwrap();
    let before = snapshot(&street.path("n0"));
    for verb in ["ls trap", "gc trap", "put trap x /etc/passwd", "status trap"] {
        let said = ends(&mut street.onefold(0, verb));
        one_sentence(verb, &said);
        assert!(!said.status.success(), "{verb}: {said:?}");
    }
    assert!(snapshot(&street.path("n0")) == before);
}

/// Whoever gives away a directory with a list of nodes chooses the names in it. Copied, it belongs
/// to the user whose own nodes it names.
#[test]
fn rule_02_a_strangers_list_of_nodes_changes_nothing_of_the_archive_whose_nodes_it_names() {
    let desk = Desk::new();
    desk.ok("create archive mine --nodes n0,n1,n2 --code 3,2");
    fs::write(desk.path("file"), "content").unwrap();
    desk.ok("put mine one file");
    let list = fs::read_to_string(desk.path("mine/nodes")).unwrap();
    let names: String = list.lines().take(3).map(|line| format!("{line}\n")).collect();
    let seal = list.lines().last().unwrap();
    // Of an older form; as the owner's own list was written, which the stranger read; with a seal
    // of the stranger's own; in another order; and with nodes that are elsewhere.
    let turned: String = names.lines().rev().map(|line| format!("{line}\n")).collect();
    let elsewhere = names.replace("n0\n", "gone\n");
    let traps = [
        ("bare", names.clone()),
        ("copied", list.clone()),
        ("forged", format!("{names}={} 1 /\n", "0".repeat(64))),
        ("turned", format!("{turned}{seal}\n")),
        ("elsewhere", format!("{elsewhere}{seal}\n")),
        ("part", elsewhere.clone()),
    ];
    let nodes = || ["n0", "n1", "n2"].map(|node| snapshot(&desk.path(node)));
    let before = nodes();
    for (trap, text) in traps {
        fs::create_dir(desk.path(trap)).unwrap();
        fs::set_permissions(desk.path(trap), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(desk.path(trap).join("nodes"), text).unwrap();
        let writes = ["put T two file", "rm T one", "mv T one two", "gc T", "repair T"];
        let nodes_of_it = ["node rebuild T", "node replace T 0 new", "volume create T v --size 1M"];
        for verb in writes.into_iter().chain(nodes_of_it).chain(["serve T --nbd unix:sock"]) {
            let verb = verb.replace(" T", &format!(" {trap}"));
            let said = ends(&mut desk.command(&verb));
            one_sentence(&verb, &said);
            assert!(!said.status.success(), "{verb}: {said:?}");
            assert!(nodes() == before, "{verb} changed the nodes");
        }
        for verb in ["ls T", "get T one", "status T", "check T", "scrub T"] {
            let verb = verb.replace(" T", &format!(" {trap}"));
            ends(&mut desk.command(&verb));
            assert!(nodes() == before, "{verb} changed the nodes");
        }
    }
    assert!(fs::read_to_string(desk.path("mine/nodes")).unwrap() == list);
    desk.ok("put mine three file");
}

#[test]
fn rule_02_a_list_of_nodes_stays_its_owners_when_its_directory_moves() {
    let desk = Desk::new();
    desk.ok("create archive mine --nodes n0,n1,n2 --code 3,2");
    fs::write(desk.path("file"), "content").unwrap();
    // The same directory under another name; and another directory under its old name.
    fs::rename(desk.path("mine"), desk.path("moved")).unwrap();
    desk.ok("put moved one file");
    fs::create_dir(desk.path("mine")).unwrap();
    fs::set_permissions(desk.path("mine"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::copy(desk.path("moved/nodes"), desk.path("mine/nodes")).unwrap();
    desk.ok("put mine two file");
    // The operator's word is a directory that was attached; both count from then on.
    desk.ok("node attach other --nodes n0,n1,n2");
    desk.ok("put other three file");
    desk.ok("put moved four file");
    // A node that takes the place of a lost one is listed, under the same seal.
    fs::remove_dir_all(desk.path("n1")).unwrap();
    desk.ok("node replace moved 1 n3");
    desk.ok("put moved five file");
    desk.fails("put other six file", 1, &["--degraded"]);
}

/// The list of an older program has no seal, and its nodes do not ask for one.
#[test]
fn rule_02_an_older_archive_opens_by_its_list_until_one_with_a_seal_is_attached() {
    let desk = Desk::new();
    desk.ok("create archive mine --nodes n0,n1,n2 --code 3,2");
    fs::write(desk.path("file"), "content").unwrap();
    desk.ok("put mine one file");
    older(&desk, "mine", &["n0", "n1", "n2"]);
    let said = desk.command("put mine two file").output().unwrap();
    assert!(said.status.success(), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stderr).contains("node attach"), "{said:?}");
    // Read-only until something is changed.
    desk.ok("node attach new --nodes n0,n1,n2");
    let said = desk.command("put mine three file").output().unwrap();
    assert!(said.status.success(), "{said:?}");
    // While a node is away, nothing is sealed, since the node would miss it.
    fs::rename(desk.path("n2"), desk.path("away")).unwrap();
    desk.ok("ls new");
    fs::rename(desk.path("away"), desk.path("n2")).unwrap();
    desk.ok("put new four file");
    desk.fails("put mine five file", 1, &["node attach"]);
    desk.ok("get mine one --output out");
    desk.ok("put new six file");
}

/// Makes an archive what an older program would have made.
fn older(desk: &Desk, archive: &str, nodes: &[&str]) {
    let list = fs::read_to_string(desk.path(archive).join("nodes")).unwrap();
    let names: String = list
        .lines()
        .filter(|line| !line.starts_with('='))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(desk.path(archive).join("nodes"), names).unwrap();
    for node in nodes {
        let file = desk.path(node).join("node");
        let mut bytes = fs::read(&file).unwrap();
        for place in bytes.chunks_exact_mut(4096) {
            let Ok(Some(mut label)) = NodeLabel::decode(place) else { continue };
            label.view.listed = false;
            place.copy_from_slice(&label.encode());
        }
        fs::write(&file, bytes).unwrap();
    }
}

#[test]
fn rule_02_no_file_of_a_cluster_folder_leads_elsewhere() {
    let desk = Desk::new();
    desk.ok("create cluster pristine");
    desk.ok("volume create pristine v --size 1M");
    let victim = desk.path("victim");
    for name in ["objects.redb", "data"] {
        for trap in Trap::all() {
            for verb in
                ["status a", "volume create a w --size 1M", "scrub a", "check a", "repair a"]
            {
                let what = format!("{verb} with {name} as {trap:?}");
                restore(&desk.path("pristine"), &desk.path("a"));
                trap.set(&desk.path("a").join(name), &victim);
                let before = fs::read(&victim).unwrap();
                let said = ends(&mut desk.command(verb));
                // A file that the verb does not write may have another name.
                if trap != Trap::HardLink || !["status a", "scrub a", "check a"].contains(&verb) {
                    one_sentence(&what, &said);
                    assert!(!said.status.success(), "{what}: {said:?}");
                }
                assert!(fs::read(&victim).unwrap() == before, "{what}: the victim was changed");
            }
        }
    }
}

#[test]
fn rule_02_what_is_no_file_and_no_device_is_no_store() {
    let desk = Desk::new();
    for trap in Trap::all().into_iter().filter(|trap| !matches!(trap, Trap::Link | Trap::HardLink))
    {
        let _ = fs::remove_file(desk.path("s"));
        let _ = fs::remove_dir(desk.path("s"));
        trap.set(&desk.path("s"), &desk.path("victim"));
        for verb in [
            "status s",
            "check s",
            "scrub s",
            "inspect s",
            "volume list s",
            "serve s --nbd unix:sock",
            "create block s --size 64M",
        ] {
            let said = ends(&mut desk.command(verb));
            one_sentence(&format!("{verb} of {trap:?}"), &said);
            assert!(!said.status.success(), "{verb} of {trap:?}: {said:?}");
        }
    }
    // A link that the user named is the user's own choice.
    desk.ok("create block disk --size 64M --preallocate none");
    symlink("disk", desk.path("link")).unwrap();
    desk.ok("check link");
}

/// No other user has any right on anything below.
#[track_caller]
fn is_private(root: &Path) {
    for (path, is) in snapshot(root) {
        let wanted = if fs::symlink_metadata(&path).unwrap().is_dir() { 0o700 } else { 0o600 };
        assert_eq!(is.1 & 0o7777, wanted, "{}", path.display());
    }
}

#[test]
fn rule_03_what_is_made_is_private_whatever_the_umask_and_the_default_acl_say() {
    let desk = Desk::new();
    let home = desk.path("home");
    fs::create_dir(&home).unwrap();
    let set = Command::new("setfacl")
        .args(["-d", "-m", "u::rwx,u:daemon:rwx,g::rwx,o::rwx"])
        .arg(&home)
        .status();
    if !set.is_ok_and(|set| set.success()) {
        println!("no default ACLs here: the umask alone is tried");
    }
    fs::write(home.join("content"), noise(1, 200_000)).unwrap();
    let verbs = [
        "create archive a",
        "put a one content",
        "put a two content",
        "rm a two",
        "volume create a v --size 1M",
        "gc a",
        "create archive b --nodes n0,n1,n2 --code 3,2",
        "put b one content",
        "get a one --output f",
        "create cluster c",
        "put c one content",
        "get c one --output g",
        "create block s --size 64M --preallocate none",
    ];
    for verb in verbs {
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask 000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_onefold")])
            .args(verb.split_whitespace());
        let said = ends(command.current_dir(&home));
        assert!(said.status.success() && said.err.is_empty(), "{verb}: {said:?}");
    }
    for name in ["a", "b", "n0", "n1", "n2", "f", "c", "g", "s"] {
        is_private(&home.join(name));
    }
}

/// An empty file that was there before may be open to others already.
#[test]
fn rule_03_no_store_is_made_in_a_file_that_others_may_have_open() {
    let desk = Desk::new();
    for mode in [0o644, 0o606, 0o660] {
        fs::write(desk.path("disk"), "").unwrap();
        fs::set_permissions(desk.path("disk"), fs::Permissions::from_mode(mode)).unwrap();
        desk.fails("create block disk --size 64M --preallocate none", 1, &["disk", "remove it"]);
        assert_eq!(fs::metadata(desk.path("disk")).unwrap().len(), 0, "{mode:o}");
    }
    fs::set_permissions(desk.path("disk"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(desk.path("disk"), desk.path("other")).unwrap();
    desk.fails("create block disk --size 64M --preallocate none", 1, &["2 names", "remove it"]);
    fs::remove_file(desk.path("other")).unwrap();
    desk.ok("create block disk --size 64M --preallocate none");
}

#[test]
#[ignore = "needs root"]
fn rule_03_no_store_is_made_in_a_file_of_a_second_user() {
    let street = Street::new();
    let shared = street.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let squatted = ends(street.program(STRANGER, Path::new("/bin/touch")).arg("shared/disk"));
    assert!(squatted.status.success(), "{squatted:?}");
    for mode in [0o666, 0o600] {
        fs::set_permissions(shared.join("disk"), fs::Permissions::from_mode(mode)).unwrap();
        let verb = "create block shared/disk --size 64M --preallocate none";
        let said = ends(&mut street.onefold(0, verb));
        one_sentence(verb, &said);
        assert!(!said.status.success() && said.err.contains("user 61234"), "{said:?}");
        assert_eq!(fs::metadata(shared.join("disk")).unwrap().len(), 0);
    }
}

#[test]
fn rule_02_manual_pages_follow_no_link() {
    let desk = Desk::new();
    let (page, victim) = (desk.path("pages/onefold.1"), desk.path("victim"));
    fs::create_dir(desk.path("pages")).unwrap();
    fs::write(&victim, "kept").unwrap();
    symlink(&victim, &page).unwrap();
    for _ in 0..2 {
        desk.ok("man pages");
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
        assert!(page.symlink_metadata().unwrap().is_file());
        assert!(fs::read_to_string(&page).unwrap().contains(".TH onefold"));
    }
    let names: Vec<_> = fs::read_dir(desk.path("pages")).unwrap().flatten().collect();
    assert!(names.iter().all(|name| name.file_name().to_string_lossy().starts_with("onefold")));
}

#[test]
fn rule_03_a_directory_that_others_can_enter_is_told_with_what_to_do() {
    let desk = Desk::new();
    archive(&desk, "a");
    desk.ok("create cluster c");
    for (name, verbs) in [("a", vec!["ls a", "status a", "check a"]), ("c", vec!["status c"])] {
        fs::set_permissions(desk.path(name), fs::Permissions::from_mode(0o755)).unwrap();
        for verb in verbs {
            let said = desk.run(verb);
            assert!(said.status.success(), "{verb}: {said:?}");
            assert!(
                said.err.lines().count() == 1 && said.err.contains(&format!("chmod -R go= {name}")),
                "{verb}: {said:?}"
            );
        }
        // The command that the sentence names helps.
        let helped = Command::new("chmod")
            .args(["-R", "go=", name])
            .current_dir(desk.path(""))
            .status()
            .unwrap();
        assert!(helped.success());
    }
    desk.ok("ls a");
    desk.ok("status c");
}

/// A process of the stranger's that locks all files of a directory that it can open.
struct Locker(Child);

impl Locker {
    fn start(street: &Street, directory: &str) -> Locker {
        let script = "import fcntl, glob, os, sys, time\nheld = []\nfor path in [sys.argv[1], \
                      *glob.glob(sys.argv[1] + '/*'), *glob.glob(sys.argv[1] + '/.*')]:\n    \
                      try:\n        held.append(os.open(path, os.O_RDONLY))\n        \
                      fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)\n    except \
                      OSError:\n        pass\nprint('ready', flush=True)\ntime.sleep(600)\n";
        let mut command = street.program(STRANGER, Path::new("/usr/bin/python3"));
        let mut child = command
            .args(["-c", script, directory])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        Locker(child)
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs root"]
fn rule_03_a_second_user_who_holds_every_lock_that_it_can_reach_stalls_nobody() {
    let street = Street::new();
    fs::write(street.path("content"), noise(1, 100_000)).unwrap();
    for verb in ["create archive a", "put a one content"] {
        let said = ends(street.onefold(0, verb).process_group(0));
        assert!(said.status.success(), "{verb}: {said:?}");
    }
    let locker = Locker::start(&street, "a");
    for verb in ["ls a", "put a two content", "rm a two", "gc a", "check a"] {
        let said = ends(&mut street.onefold(0, verb));
        assert!(said.status.success(), "{verb}: {said:?}");
    }
    drop(locker);
    // As it was made by older versions.
    for name in names_in(&street.path("a")) {
        fs::set_permissions(street.path("a").join(name), fs::Permissions::from_mode(0o644))
            .unwrap();
    }
    fs::set_permissions(street.path("a"), fs::Permissions::from_mode(0o755)).unwrap();
    let locker = Locker::start(&street, "a");
    let verbs =
        ["ls a", "rm a one", "put a two content"].map(|verb| (verb, street.onefold(0, verb)));
    let waiting =
        verbs.map(|(verb, mut command)| (verb, std::thread::spawn(move || ends(&mut command))));
    for (verb, said) in waiting {
        let said = said.join().unwrap();
        one_sentence(verb, &said);
        assert!(!said.status.success(), "{verb}: {said:?}");
        assert!(said.err.contains(&format!("process {}", locker.0.id())), "{verb}: {said:?}");
        assert!(said.err.contains("chmod"), "{verb}: {said:?}");
    }
}

/// A user who can write above a store puts something else in its place between the look at it and
/// the opening: a link to a file or a directory of ours elsewhere.
#[test]
fn rule_02_what_was_swapped_since_it_was_looked_at_is_not_written() {
    use onefold::parts::store_file::StoreFile;
    use onefold_backend::{Word, claim_file};

    let desk = Desk::new();
    let swap = |name: &str, by: &str| {
        fs::rename(desk.path(name), desk.path(&format!("{name}.away"))).unwrap();
        symlink(desk.path(by), desk.path(name)).unwrap();
    };
    desk.store_with_volume("disk");
    fs::write(desk.path("ours"), vec![7; 1 << 20]).unwrap();
    let looked = StoreFile::look(&desk.path("disk")).unwrap();
    swap("disk", "ours");
    assert!(looked.claim().is_err());
    assert!(fs::read(desk.path("ours")).unwrap().iter().all(|byte| *byte == 7));

    // The folder of an archive or a cluster store is known by its files when it is claimed.
    fs::create_dir(desk.path("home")).unwrap();
    desk.ok("create archive a");
    desk.ok("create cluster b");
    for (name, file) in [("a", "label"), ("b", "objects.redb")] {
        swap(name, "home");
        assert!(claim_file(&desk.path(name), Word::default(), &[file]).is_err());
        assert!(claim_file(&desk.path(&format!("{name}.away")), Word::default(), &[file]).is_ok());
    }
    assert_eq!(fs::read_dir(desk.path("home")).unwrap().count(), 0);
}

/// Whoever owns the directory of an image may put a pipe, or a link to one, in its place.
#[test]
fn rule_02_an_image_that_is_no_file_is_neither_opened_nor_waited_for() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    assert!(Command::new("mkfifo").arg(desk.path("pipe")).status().unwrap().success());
    symlink(desk.path("pipe"), desk.path("link")).unwrap();
    for name in ["pipe", "link", "/dev/null", "."] {
        let said = ends(&mut desk.command(&format!("import a v {name}")));
        let told = said.err.contains("neither a file nor a block device");
        assert!(said.status.code() == Some(1) && told, "{name}: {said:?}");
    }
}
