//! Trees of snapshots whose author wants readers to go on for ever: rule 9.

use std::{fs, os::unix::fs::FileExt, path::Path, process::Stdio, sync::Arc};

use onefold_archive::{
    Archive, Attributes, BackupRequest, Event, FileMap, Gauge, IndexEntry, Key, Known, Part,
    Record, Settings, SnapshotId, Stat, Top, TreeEntry, TreeNode, TreeNodeRef, TreeReader,
    TreeWhat, backup, encode_attributes,
};
use onefold_backend::Directory;

use super::readers::{append, bounded, identity};
use crate::support::{Desk, overwrite};

fn entry(name: &str, what: TreeWhat) -> TreeEntry {
    TreeEntry {
        name: name.into(),
        what,
        mode: 0o755,
        uid: 0,
        gid: 0,
        seconds: 3,
        nanoseconds: 4,
        link: 0,
        is_in_part: false,
        attributes: Attributes::default(),
    }
}

/// Makes a snapshot with this number of what is told.
fn store(archive: &Arc<Archive>, id: u8, set: &str, told: Vec<(Vec<u8>, Event)>) {
    let request = BackupRequest {
        id: SnapshotId([id; 16]),
        set: set.into(),
        now: 1_000,
        ..BackupRequest::default()
    };
    backup(archive, &request, true, &Gauge::default(), |feeder| {
        let root = entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
        for (content, event) in told {
            feeder.bytes(&content)?;
            feeder.event(event)?;
        }
        feeder.event(Event::End(0))
    })
    .unwrap();
}

/// Stores a node as the content of a file: where it lies makes no difference to readers.
fn node(archive: &Arc<Archive>, id: u8, node: &TreeNode) -> TreeNodeRef {
    let file = entry("node", TreeWhat::File(0, FileMap::default()));
    store(archive, id, "n", vec![(node.encode(), Event::File(file, Stat::default(), None))]);
    let mut reader = TreeReader::new(archive).unwrap();
    let tables = reader.tables().clone();
    let snapshot = tables.snapshots.get(SnapshotId([id; 16])).unwrap();
    match reader.find(snapshot, b"node").unwrap().what {
        TreeWhat::File(_, FileMap::Inline(parts)) => match &parts[..] {
            [Part::Run { first, fingerprints, .. }] if fingerprints.len() == 1 => {
                TreeNodeRef { address: *first, fingerprint: fingerprints[0] }
            }
            _ => panic!("the node is several chunks"),
        },
        _ => panic!("the node is no file"),
    }
}

/// Index pages of a file's map so many levels high, each with 100 entries, all of which lead to what is below.
fn raised(
    archive: &Arc<Archive>,
    first_id: u8,
    below: TreeNodeRef,
    levels: std::ops::RangeInclusive<u8>,
) -> TreeNodeRef {
    levels.fold(below, |below, level| {
        let entries = (0..100).map(|_| IndexEntry { node: below, key: Key::Sum(1) }).collect();
        node(archive, first_id + level, &TreeNode::Index(level, entries))
    })
}

/// Six levels of index pages, each with 100 entries, all of which lead to one page.
fn again_and_again(archive: &Arc<Archive>, first_id: u8, page: &TreeNode) -> Top {
    let mut below = node(archive, first_id, page);
    let has_names = matches!(page, TreeNode::Directory(_));
    for level in 1..=6 {
        let key = |n: u32| match has_names {
            true => Key::Name(format!("{n:03}").into_bytes()),
            false => Key::Sum(1),
        };
        let entries = (0..100).map(|n| IndexEntry { node: below, key: key(n) }).collect();
        below = node(archive, first_id + level, &TreeNode::Index(level, entries));
    }
    Top { levels: 6, node: below }
}

/// The archive `a`, with a set `evil`: a directory and a file whose index pages lead to one page.
fn forge(desk: &Desk) {
    // A node is one chunk, wherever one of smaller chunks would be cut.
    desk.ok("create archive a --compress none --chunking fastcdc:64K");
    let files = Directory::open(&desk.path("a"), true).unwrap();
    let archive = Archive::open(Arc::new(files), true, Settings::default()).unwrap();
    let archive = Arc::new(archive);
    let page = TreeNode::Directory(vec![entry("000", TreeWhat::Fifo)]);
    let directory = again_and_again(&archive, 1, &page);
    let content = again_and_again(&archive, 10, &TreeNode::FileMap(vec![Part::Hole(1)]));
    let told = |event| (Vec::new(), event);
    let evil = entry("evil", TreeWhat::Directory(Some(directory)));
    let file = entry("file", TreeWhat::File(0, FileMap::default()));
    let map = Some((1 << 40, FileMap::Pages(content)));
    store(
        &archive,
        20,
        "evil",
        vec![
            told(Event::Other(evil, Stat::default())),
            told(Event::File(file, Stat::default(), map)),
        ],
    );
}

#[test]
fn rule_09_index_pages_that_lead_to_one_page_keep_no_reader() {
    let desk = Desk::new();
    forge(&desk);
    fs::create_dir(desk.path("home")).unwrap();
    for verb in [
        "ls a evil",
        "restore a evil -C out",
        "find a letter --set evil",
        "diff a n evil",
        "check a",
        "backup a home --set evil",
    ] {
        let status = bounded(&desk, verb).stdout(Stdio::null()).status().unwrap();
        assert!(matches!(status.code(), Some(0 | 1 | 3)), "{verb}: {status}");
    }
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        println!("NOT TESTED: mounting needs /dev/fuse and root");
        return;
    }
    fs::create_dir(desk.path("m")).unwrap();
    let mut mount =
        desk.command("mount a m --snapshot :evil").stdout(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(mount.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();
    let listed = fs::read_dir(desk.path("m/evil")).unwrap().collect::<Result<Vec<_>, _>>();
    assert!(listed.is_err(), "{listed:?}");
    let file = fs::File::open(desk.path("m/file")).unwrap();
    assert!(file.read_exact_at(&mut [0; 100], 50_000).is_err());
    drop(file);
    let process = rustix::process::Pid::from_child(&mount);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert!(mount.wait().unwrap().success());
}

/// The archive `a`, open for writing.
fn archive(desk: &Desk) -> Arc<Archive> {
    desk.ok("create archive a --compress none --chunking fastcdc:64K");
    let files = Directory::open(&desk.path("a"), true).unwrap();
    Arc::new(Archive::open(Arc::new(files), true, Settings::default()).unwrap())
}

/// Forty levels of directories, each of which has the one below it twice: a snapshot whose author says that
/// it has as many entries as there are paths.
#[test]
fn rule_09_a_tree_that_doubles_keeps_no_search_and_fills_no_memory() {
    let desk = Desk::new();
    let archive = archive(&desk);
    let mut below = node(&archive, 1, &TreeNode::Directory(vec![entry("leaf", TreeWhat::Fifo)]));
    for level in 2..=41 {
        let top = Some(Top { levels: 0, node: below });
        let twice = ["0", "1"].map(|name| entry(name, TreeWhat::Directory(top)));
        below = node(&archive, level, &TreeNode::Directory(twice.into()));
    }
    let top = TreeWhat::Directory(Some(Top { levels: 0, node: below }));
    store(
        &archive,
        50,
        "small",
        vec![(Vec::new(), Event::Other(entry("evil", top), Stat::default()))],
    );
    let small = archive.tables().snapshots.get(SnapshotId([50; 16])).unwrap().clone();
    drop(archive);
    let mut snapshot = Box::new(small);
    (snapshot.id, snapshot.set, snapshot.entries) = (SnapshotId([51; 16]), "evil".into(), 1 << 41);
    let made = Record::SnapshotMade { snapshot, containers: Vec::new(), finished: Vec::new() };
    append(&desk.path("a/log-0000000001"), &identity(&desk.path("a")), &[&[made]]);
    for pattern in ["letter", "1/letter", "1/0/letter", "letter/"] {
        let said = bounded(&desk, &format!("find a {pattern} --set evil")).output().unwrap();
        assert_eq!(said.status.code(), Some(1), "{pattern}: {said:?}");
    }
    // A page that has what is looked for is shown by each of its paths.
    let said = bounded(&desk, "find a leaf --set evil | head -n 3000").output().unwrap();
    assert_eq!(said.stdout.iter().filter(|&&byte| byte == b'\n').count(), 3000);
}

/// The system takes this number for none: who gives it to a file changes nothing, and may stop.
#[test]
fn rule_05_an_owner_that_no_file_has_is_damage() {
    let desk = Desk::new();
    let archive = archive(&desk);
    for (id, uid, gid) in [(1, u32::MAX, 0), (2, 0, u32::MAX)] {
        let page = vec![TreeEntry { uid, gid, ..entry("file", TreeWhat::Fifo) }];
        let top = Top { levels: 0, node: node(&archive, id, &TreeNode::Directory(page)) };
        let evil = entry("evil", TreeWhat::Directory(Some(top)));
        let set = format!("evil{id}");
        store(&archive, 50 + id, &set, vec![(Vec::new(), Event::Other(evil, Stat::default()))]);
        let said = bounded(&desk, &format!("restore a {set} -C out{id}")).output().unwrap();
        assert!(matches!(said.status.code(), Some(1 | 3)), "{said:?}");
        let told = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(told.contains("its owner or group is none"), "{told}");
    }
}

/// Two files of one length and content, or nearly, whose maps name few pages very often.
#[test]
fn rule_09_maps_that_name_a_page_again_and_again_keep_no_comparison() {
    let desk = Desk::new();
    let archive = archive(&desk);
    let page = |id, parts| node(&archive, id, &TreeNode::FileMap(parts));
    let holes = [page(1, vec![Part::Hole(1), Part::Hole(1)]), page(2, vec![Part::Hole(2)])];
    let mixed = page(3, vec![Part::Hole(300), Part::Zeroes(300)]);
    let small = [
        page(4, vec![Part::Hole(2), Part::Zeroes(2)]),
        page(5, vec![Part::Hole(1), Part::Hole(1), Part::Zeroes(1), Part::Zeroes(1)]),
    ];
    let whole = |id, page| raised(&archive, id, page, 1..=6);
    // The last page that a top names is another one.
    let below = raised(&archive, 20, mixed, 1..=5);
    let ends = raised(&archive, 30, page(6, vec![Part::Hole(299), Part::Zeroes(301)]), 1..=5);
    let nearly = [below, ends].map(|last| {
        let all = std::iter::repeat_n(below, 99).chain([last]);
        let entries = all.map(|node| IndexEntry { node, key: Key::Sum(1) }).collect();
        node(&archive, 40 + u8::from(last == ends), &TreeNode::Index(6, entries))
    });
    let files = [
        ("holes", 2 * 100u64.pow(6), [whole(50, holes[0]), whole(60, holes[1])], 0),
        ("nearly", 600 * 100u64.pow(6), nearly, 0),
        // Pages of a few bytes are more than any file needs.
        ("small", 4 * 100u64.pow(6), [whole(70, small[0]), whole(80, small[1])], 1),
    ];
    let mut id = 100;
    for (name, bytes, maps, status) in files {
        for (n, node) in maps.into_iter().enumerate() {
            let file = entry(name, TreeWhat::File(0, FileMap::default()));
            let map = Some((bytes, FileMap::Pages(Top { levels: 6, node })));
            let set = format!("{name}{n}");
            store(&archive, id, &set, vec![(Vec::new(), Event::File(file, Stat::default(), map))]);
            id += 1;
        }
        let said = bounded(&desk, &format!("diff a {name}0 {name}1")).output().unwrap();
        assert_eq!(said.status.code(), Some(status), "{name}: {said:?}");
        let told = String::from_utf8_lossy(&said.stdout).into_owned();
        let differ = told.lines().any(|line| line.starts_with('M'));
        assert_eq!(differ, name == "nearly", "{name}: {told}");
    }
}

#[test]
fn rule_00_promise_a_mount_whose_program_was_killed_is_told_with_the_way_out() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        println!("NOT TESTED: mounting needs /dev/fuse and root");
        return;
    }
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("m")).unwrap();
    let mut mount = desk.command("mount a m").stdout(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(mount.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();
    mount.kill().unwrap();
    mount.wait().unwrap();
    let again = desk.run("mount a m");
    rustix::mount::unmount(desk.path("m"), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(again.err.contains("`umount m`"), "{again:?}");
}

/// Levels of a tree whose directories have a full page each.
const LEVELS: usize = 500;

/// A set of which each directory has a directory, and a page full of empty ones behind it.
fn deep(archive: &Arc<Archive>, id: u8, set: &str) {
    let directory = |name: &str| entry(name, TreeWhat::Directory(None));
    let told = |event| (Vec::new(), event);
    let down =
        (0..LEVELS).map(|_| told(Event::Enter(directory("0"), Stat::default(), Known::new())));
    let beside = (0..400).map(|n| directory(&format!("{n:0>100}-{set}")));
    let beside: Vec<TreeEntry> = beside.collect();
    let up = (0..LEVELS).flat_map(|_| {
        let others = beside.iter().map(|one| told(Event::Other(one.clone(), Stat::default())));
        [told(Event::Leave(false))].into_iter().chain(others).collect::<Vec<_>>()
    });
    store(archive, id, set, down.chain(up).collect());
}

/// A user makes a deep tree for nothing.
#[test]
fn rule_09_full_pages_of_a_deep_tree_are_not_all_held() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    let files = Directory::open(&desk.path("a"), true).unwrap();
    let archive = Archive::open(Arc::new(files), true, Settings::default()).unwrap();
    let archive = Arc::new(archive);
    deep(&archive, 1, "one");
    deep(&archive, 2, "two");
    drop(archive);
    // Of its data less than these pages have.
    let within = |verb: &str| {
        let words = format!("ulimit -d 50000; exec \"$0\" {verb}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &words]).arg(env!("CARGO_BIN_EXE_onefold"));
        command.current_dir(desk.path(".")).output().unwrap()
    };
    for (verb, status) in [
        ("find a letter", 1),
        ("find a 000-one --set one", 0),
        ("diff a one two", 0),
        ("restore a one -C out --dry-run", 0),
        ("check a", 0),
    ] {
        let verb = verb.replace("000-one", &format!("{:0>100}-one", 399));
        let said = within(&verb);
        let told = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(status), "{verb}: {told}");
        let lines = said.stdout.iter().filter(|byte| **byte == b'\n').count();
        let expected = match verb.split(' ').next() {
            Some("find") if status == 0 => LEVELS,
            Some("diff") => 2 * LEVELS * 400,
            _ => 0,
        };
        assert!(lines >= expected, "{verb}: {lines}");
    }
}

/// Restores the snapshot into `out`, with 300 MB of memory; gives what was said beside.
fn restored_in_little_memory(desk: &Desk) -> String {
    let words = "ulimit -d 300000; exec \"$0\" restore a evil -C out";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", words]).arg(env!("CARGO_BIN_EXE_onefold"));
    let said = command.current_dir(desk.path(".")).output().unwrap();
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    String::from_utf8(said.stderr).unwrap()
}

/// An attribute without a value takes a few bytes in an archive, and a hundred in memory.
#[test]
fn rule_09_attributes_without_content_are_not_all_held() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let files = Directory::open(&desk.path("a"), true).unwrap();
    let archive = Arc::new(Archive::open(Arc::new(files), true, Settings::default()).unwrap());
    let attributes: Vec<_> = (0..6000_u32).map(|n| (format!("{n:x}").into(), vec![])).collect();
    let files = (0..1000).map(|n| {
        let mut file = entry(&format!("{n:04}"), TreeWhat::File(0, FileMap::default()));
        file.attributes = Attributes::Inline(attributes.clone());
        (b"content".to_vec(), Event::File(file, Stat::default(), None))
    });
    store(&archive, 1, "evil", files.collect());
    drop(archive);
    let said = restored_in_little_memory(&desk);
    assert_eq!(fs::read_dir(desk.path("out")).unwrap().count(), 1000);
    assert!(said.contains("6,000,000 attributes"), "{said}");
}

/// Attributes of directories wait for the end of what is in them: those of deep ones that have a great many
/// do not wait.
#[test]
fn rule_09_directories_in_each_other_with_many_attributes_get_their_own() {
    const LEVELS: usize = 160;
    let desk = Desk::new();
    desk.ok("create archive a");
    let files = Directory::open(&desk.path("a"), true).unwrap();
    let archive = Arc::new(Archive::open(Arc::new(files), true, Settings::default()).unwrap());
    let mut attributes: Vec<_> = (0..6000_u32).map(|n| (format!("{n:x}").into(), vec![])).collect();
    attributes.push((b"user.note".to_vec(), b"mine".to_vec()));
    let down = (0..LEVELS).flat_map(|_| {
        let directory = entry("d", TreeWhat::Directory(None));
        let stored = encode_attributes(&attributes);
        let enter = Event::Enter(directory, Stat::default(), Known::new());
        [(stored, Event::Attributes), (Vec::new(), enter)]
    });
    let up = (0..LEVELS).map(|_| (Vec::new(), Event::Leave(false)));
    store(&archive, 1, "evil", down.chain(up).collect());
    drop(archive);
    restored_in_little_memory(&desk);
    for levels in [1, LEVELS / 2, LEVELS] {
        let place = desk.path("out").join("d/".repeat(levels));
        let mut value = [0; 8];
        let bytes = rustix::fs::getxattr(&place, "user.note", &mut value[..]).unwrap();
        assert_eq!(&value[..bytes], b"mine", "{levels}");
    }
}

#[test]
fn rule_09_find_goes_on_behind_a_snapshot_that_cannot_be_read_and_says_so() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    for (home, set, name) in [("home", "good", "letter"), ("away", "evil", "a-name-of-its-own")] {
        fs::create_dir(desk.path(home)).unwrap();
        fs::write(desk.path(home).join(name), "dear").unwrap();
        desk.ok(&format!("backup a {home} --set {set}"));
    }
    // The page that has this name is no page any more.
    let mut is_damaged = false;
    for entry in fs::read_dir(desk.path("a")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(17).position(|bytes| bytes == b"a-name-of-its-own") {
            overwrite(&path, at as u64, b"x");
            is_damaged = true;
        }
    }
    assert!(is_damaged);
    let said = desk.run("find a letter");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    assert!(said.out.contains("home/letter"), "{said:?}");
    assert!(said.err.contains("1 snapshot could not be looked through to the end"), "{said:?}");
    // Where it is not looked at, nothing is amiss.
    let said = desk.run("find a letter --set good");
    assert!(said.status.success() && said.out.contains("home/letter"), "{said:?}");
}
