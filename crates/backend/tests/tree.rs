//! Directory trees that others change while they are walked and made again.
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::Read,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    time::{Duration, Instant},
};

use onefold_backend::tree::{Choices, Found, NamesMemory, Options, Restorer, Walk};
use onefold_core::tree::{Entry, What};

fn text(entry: &Entry) -> String {
    String::from_utf8(entry.path.clone()).unwrap()
}

fn walk(root: &Path, options: Options, mut each: impl FnMut(&str)) -> Vec<String> {
    let mut found = Vec::new();
    for one in Walk::new(root, options).unwrap() {
        let Ok(mut one) = one else { continue };
        let path = text(&one.entry);
        each(&path);
        let mut content = String::new();
        one.file.as_mut().map(|file| file.read_to_string(&mut content));
        found.push(format!("{path}={content}"));
    }
    found
}

#[test]
fn rule_04_directories_swapped_for_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, secret) = (dir.path().join("tree"), dir.path().join("secret"));
    for (path, content) in [
        ("secret/key", "secret"),
        ("tree/a/key", "own"),
        ("tree/b/c/key", "own"),
        ("tree/d/key", "own"),
    ] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    // Each directory becomes a link when it was told of, or just before.
    let swap = |name: &str| {
        fs::rename(tree.join(name), dir.path().join(format!("was-{}", name.replace('/', "-"))))
            .unwrap();
        symlink(&secret, tree.join(name)).unwrap();
    };
    let found = walk(&tree, Options::default(), |path| match path {
        "a" => swap("a"),
        "b" => swap("d"),
        "b/c" => swap("b"),
        _ => {}
    });
    assert_eq!(found, ["=", "a=", "a/key=own", "b=", "b/c=", "b/c/key=own", "d="]);
}

#[test]
fn rule_04_a_file_swapped_for_a_pipe_or_a_link_does_not_hold_it_up() {
    let dir = tempfile::tempdir().unwrap();
    (0..3).for_each(|n| fs::write(dir.path().join(format!("f{n}")), "x").unwrap());
    let found = walk(dir.path(), Options::default(), |path| {
        if path == "f0" {
            fs::remove_file(dir.path().join("f1")).unwrap();
            rustix::fs::mknodat(
                rustix::fs::CWD,
                dir.path().join("f1"),
                rustix::fs::FileType::Fifo,
                0o600.into(),
                0,
            )
            .unwrap();
            fs::remove_file(dir.path().join("f2")).unwrap();
            symlink("/etc/passwd", dir.path().join("f2")).unwrap();
        }
    });
    assert_eq!(found, ["=", "f0=x", "f1=", "f2="]);
}

/// Somebody who holds leases on files and gives none back; and whether it does hold them. `None`
/// where that can't be tried.
fn lease_holder(directory: &Path, files: &[&str]) -> Option<(std::process::Child, bool)> {
    // The signal that asks for a lease is ignored.
    let script = "import \
                  fcntl,signal,time,sys\nsignal.signal(signal.SIGIO,\
                  signal.SIG_IGN)\nfs=[open(sys.argv[1]+'/'+n,'r+') for n in \
                  sys.argv[2:]]\n[fcntl.fcntl(f,fcntl.F_SETLEASE,fcntl.F_WRLCK) for f in \
                  fs]\nprint('held',flush=True)\ntime.sleep(100)";
    let mut holder = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(directory)
        .args(files)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .ok()?;
    let mut held = [0; 5];
    let holds = holder.stdout.take()?.read_exact(&mut held).is_ok();
    Some((holder, holds))
}

#[test]
fn rule_04_leases_hold_a_walk_up_only_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    (0..3).for_each(|n| fs::write(dir.path().join(format!("f{n}")), "x").unwrap());
    let Some((mut holder, holds)) = lease_holder(dir.path(), &["f0", "f1"]) else { return };
    let begun = Instant::now();
    let found = walk(dir.path(), Options::default(), |_| {});
    holder.kill().unwrap();
    holder.wait().unwrap();
    if holds {
        assert_eq!(found, ["=", "f2=x"]);
        assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    }
}

fn entry(path: &str, what: What) -> Entry {
    let mode = if what == What::Directory { 0o755 } else { 0o644 };
    Entry {
        path: path.into(),
        what,
        mode,
        uid: 0,
        gid: 0,
        seconds: 7,
        nanoseconds: 0,
        attributes: Vec::new(),
    }
}

#[test]
fn rule_05_what_was_renamed_inside_the_destination_gets_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    // Others may write to it, so names can be exchanged there.
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::File::open(&out)
        .unwrap()
        .set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    let directory = || What::Directory;
    let file = || What::File { bytes: 3, data: Vec::new() };
    let mut restorer = Restorer::new(&out, Choices::default()).unwrap();
    let all =
        [entry("", directory()), entry("d", directory()), entry("d/f", file()), entry("f", file())];
    assert!(restorer.make(&all[1]).unwrap().is_none());
    fs::rename(out.join("d"), out.join("mine")).unwrap();
    fs::create_dir(out.join("d")).unwrap();
    assert!(restorer.make(&all[2]).unwrap().is_some());
    assert!(out.join("mine/f").exists() && !out.join("d/f").exists());
    assert!(restorer.make(&all[3]).unwrap().is_some());
    // A link to a file that is another by now is not one to what was restored.
    fs::rename(out.join("f"), out.join("away")).unwrap();
    fs::write(out.join("f"), "of another").unwrap();
    restorer.make(&entry("g", What::HardLink { target: b"f".to_vec() })).err().unwrap();
    restorer.made_all().unwrap();
    restorer.finish(&all[0]).unwrap();
    restorer.finish(&all[1]).unwrap_err();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata(out.join("mine")).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn rule_05_two_entries_that_meet_are_an_error_that_names_both() {
    let dir = tempfile::tempdir().unwrap();
    let choices = Choices { in_place: true, ..Choices::default() };
    let mut restorer = Restorer::new(dir.path(), choices).unwrap();
    restorer.make(&entry("d", What::Directory)).unwrap();
    restorer.make(&entry("f", What::File { bytes: 0, data: Vec::new() })).unwrap();
    // As on a file system that takes both names for one.
    for (path, what) in [("d", What::Directory), ("f", What::Symlink { target: b"x".to_vec() })] {
        let error = restorer.make(&entry(path, what)).err().unwrap().to_string();
        assert!(
            error.contains(&format!("'{path}'"))
                && error.contains(dir.path().join(path).to_str().unwrap()),
            "{error}"
        );
    }
}

/// A file with very many holes would make an entry that no reader takes.
#[test]
fn rule_07_stretches_of_data_that_are_too_many_are_left_out_and_told() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::create_new(dir.path().join("sparse")).unwrap();
    for n in 0..5 {
        file.write_all_at(&[7; 4096], n << 20).unwrap();
    }
    let file = std::fs::File::open(dir.path().join("sparse")).unwrap();
    let bytes = file.metadata().unwrap().len();
    for (most, whole) in [(3, false), (5, true)] {
        let mut room = vec![0; 1 << 20];
        let (data, failed) =
            onefold_backend::tree::read_data(&file, bytes, most, &mut |read| read(&mut room))
                .unwrap();
        assert_eq!((data.len(), failed.is_none()), (most, whole));
    }
}

#[test]
fn rule_07_no_name_links_to_one_that_could_not_be_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "data").unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
    let Some((mut holder, true)) = lease_holder(dir.path(), &["a"]) else { return };
    let mut found: Vec<Entry> = Vec::new();
    let mut errors = 0;
    for one in Walk::new(dir.path(), Options::default()).unwrap() {
        match one {
            Ok(one) => found.push(one.entry),
            // `b` can be read again.
            Err(_) => {
                errors += 1;
                holder.kill().unwrap();
                holder.wait().unwrap();
            }
        }
    }
    for entry in &found {
        let What::HardLink { target } = &entry.what else { continue };
        assert!(found.iter().any(|other| other.path == *target), "{}", text(entry));
    }
    assert_eq!((found.len(), errors), (2, 1));
}

#[test]
fn rule_07_attributes_that_are_too_many_cost_neither_data_nor_what_lies_below() {
    // Attributes of 60,000 bytes that are more than 4 MiB, where a file system takes as many.
    let put_many = |path: &Path| -> rustix::io::Result<()> {
        let file = fs::File::open(path).unwrap();
        (0..80).try_for_each(|n| {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::fsetxattr(&file, format!("user.{n}"), &[7; 60_000], flags)
        })
    };
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let (below, file) = (dir.path().join("d"), dir.path().join("d/a"));
    fs::create_dir(&below).unwrap();
    fs::write(&file, "data").unwrap();
    if put_many(&below).and_then(|()| put_many(&file)).is_err() {
        eprintln!("not tested: /dev/shm takes no attributes of users");
        return;
    }
    let found: Vec<Found> =
        Walk::new(dir.path(), Options::default()).unwrap().map(|one| one.unwrap()).collect();
    let told: Vec<(bool, bool)> =
        found.iter().map(|one| (one.lacks.is_some(), one.file.is_some())).collect();
    assert_eq!(told, [(false, false), (true, false), (true, true)]);
    assert!(found.iter().all(|one| one.entry.attributes.len() < 80));
}

#[test]
fn directories_within_each_other_get_more_attributes_than_are_held() {
    // 17 of 4 MiB each, where a file system takes as many; 64 MiB are held.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let attributes: Vec<_> =
        (0..70).map(|n| (format!("user.{n}").into_bytes(), vec![7; 60_000])).collect();
    let entries: Vec<Entry> = (1..=17)
        .map(|depth| Entry {
            path: vec!["d"; depth].join("/").into_bytes(),
            what: What::Directory,
            mode: 0o750,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            seconds: 1,
            nanoseconds: 0,
            attributes: attributes.clone(),
        })
        .collect();
    let mut restorer = Restorer::new(&dir.path().join("out"), Choices::default()).unwrap();
    for entry in &entries {
        restorer.make(entry).unwrap();
    }
    restorer.made_all().unwrap();
    entries.iter().for_each(|entry| restorer.finish(entry).unwrap());
    let left_out = restorer.end().unwrap();
    if left_out.attributes > 0 {
        let file = fs::File::open(dir.path()).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::fsetxattr(&file, "user.mine", &[7; 60_000], flags).is_err() {
            eprintln!("not tested: /dev/shm takes no attributes of users");
            return;
        }
    }
    assert_eq!(left_out.attributes, 0);
    for entry in &entries {
        let found = fs::metadata(dir.path().join("out").join(text(entry))).unwrap();
        assert_eq!((found.mode() & 0o777, found.mtime()), (0o750, 1), "{}", text(entry));
    }
}

#[test]
fn a_walk_is_the_same_with_little_memory_for_names() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..40 {
        let sub = dir.path().join(format!("{:x}", n * 7919 % 40));
        std::fs::create_dir(&sub).unwrap();
        for m in 0..60 {
            std::fs::write(sub.join(format!("{}-{m}", m * 7919 % 61)), "x").unwrap();
        }
        let deep = sub.join("deep/deeper");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("f"), "x").unwrap();
    }
    let walked = |names: NamesMemory| -> Vec<Vec<u8>> {
        let options = Options { names, ..Options::default() };
        Walk::new(dir.path(), options).unwrap().map(|one| one.unwrap().entry.path).collect()
    };
    let all = walked(NamesMemory::default());
    assert_eq!(all.len(), 1 + 40 * 64);
    assert!(all.is_sorted_by_key(|path| {
        path.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>()
    }));
    for (run, held) in [(100, 1000), (1, 0), (1 << 20, 0)] {
        assert!(walked(NamesMemory { run, held }) == all, "{run}, {held}");
    }
}

#[test]
fn rule_13_the_number_of_readers_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..30 {
        let deep = dir.path().join(format!("d{n}/e/f"));
        std::fs::create_dir_all(&deep).unwrap();
        (0..20)
            .for_each(|m| std::fs::write(deep.join(format!("{m}")), format!("{n} {m}")).unwrap());
        std::fs::hard_link(deep.join("3"), dir.path().join(format!("d{n}/link"))).unwrap();
        symlink(&deep, dir.path().join(format!("d{n}/to"))).unwrap();
    }
    // One that can't be entered, but by root; one that is cached; and an error.
    std::fs::write(
        dir.path().join("d5/CACHEDIR.TAG"),
        "Signature: 8a477f597d28d172789f06886806bc55",
    )
    .unwrap();
    std::fs::create_dir(dir.path().join("d7/a-name-that-is-too-long")).unwrap();
    let closed = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(dir.path().join("d9"), closed).unwrap();
    let walked = |readers: usize, slow: Duration| -> Vec<String> {
        let (name_max, without_caches) = (20, true);
        let options = Options { readers, slow, name_max, without_caches, ..Options::default() };
        let walk = Walk::new(dir.path(), options).unwrap();
        let told = walk.map(|one| match one {
            Ok(one) => format!("{:?} {} {:?}", one.entry, one.is_in_part, one.linked),
            Err(error) => format!("{error:?}"),
        });
        told.collect()
    };
    let alone = walked(0, Duration::MAX);
    assert!(alone.len() > 29 * 25, "{}", alone.len());
    for readers in [0, 1, 4, 16] {
        assert!(walked(readers, Duration::ZERO) == alone, "{readers}");
    }
    std::fs::set_permissions(dir.path().join("d9"), std::fs::Permissions::from_mode(0o755))
        .unwrap();
}

#[test]
fn rule_13_a_walk_leaves_the_times_of_access_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let reset = |path: &Path| {
        let times = std::fs::FileTimes::new().set_accessed(old);
        std::fs::File::open(path).unwrap().set_times(times).unwrap();
    };
    let accessed = |path: &Path| std::fs::metadata(path).unwrap().accessed().unwrap();
    let paths = ["", "sub", "sub/file", "sub/other"].map(|name| dir.path().join(name));
    std::fs::create_dir(&paths[1]).unwrap();
    paths[2..].iter().for_each(|path| std::fs::write(path, "content").unwrap());
    paths.iter().for_each(|path| reset(path));
    std::fs::read(&paths[2]).unwrap();
    if accessed(&paths[2]) == old {
        println!("NOT TESTED: this file system keeps no times of access");
        return;
    }
    for opens_late in [false, true] {
        paths.iter().for_each(|path| reset(path));
        let slow = Duration::ZERO;
        let mut walk =
            Walk::new(dir.path(), Options { opens_late, slow, ..Options::default() }).unwrap();
        let mut read = 0;
        while let Some(found) = walk.next() {
            let mut found = found.unwrap();
            assert!(walk.open(&mut found).unwrap());
            walk.fetch_ahead();
            let mut content = String::new();
            read += found.file.map_or(0, |mut file| file.read_to_string(&mut content).unwrap());
        }
        drop(walk);
        assert_eq!(read, 14);
        assert!(paths.iter().all(|path| accessed(path) == old), "{opens_late}");
    }
}

#[test]
fn rule_07_a_name_that_is_too_long_costs_what_it_names() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a/x", "long/below", "z/x"] {
        std::fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    let walk = Walk::new(dir.path(), Options { name_max: 3, ..Options::default() }).unwrap();
    let (found, errors): (Vec<_>, Vec<_>) = walk.partition(|one| one.is_ok());
    let paths: Vec<_> = found.into_iter().map(|one| one.unwrap().entry.path).collect();
    assert_eq!(paths, [&b""[..], b"a", b"a/x", b"z", b"z/x"]);
    assert_eq!(errors.len(), 1);
}

#[test]
fn rule_05_a_file_that_is_opened_again_is_the_one_that_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut restorer = Restorer::new(&out, Choices::default()).unwrap();
    restorer.make(&entry("d", What::Directory)).unwrap();
    let files = restorer.files();
    let file = |name: &str| entry(name, What::File { bytes: 3, data: Vec::new() });
    let number = restorer.number(&files, &file("d/f")).unwrap();
    let (_, made) = files.make(number, &file("d/f")).unwrap();
    let (_, other) = files.make(number, &file("d/g")).unwrap();
    assert_ne!(made, other);
    files.open_again(number, &file("d/f"), made).unwrap();
    // Another file, then a link to one, has the name.
    fs::rename(out.join("d/f"), out.join("d/was")).unwrap();
    fs::write(out.join("d/f"), "foreign").unwrap();
    let error = files.open_again(number, &file("d/f"), made).unwrap_err();
    assert_eq!(error.kind(), onefold_core::Kind::Busy, "{error}");
    fs::remove_file(out.join("d/f")).unwrap();
    symlink(out.join("d/was"), out.join("d/f")).unwrap();
    let error = files.open_again(number, &file("d/f"), made).unwrap_err();
    assert_eq!(error.kind(), onefold_core::Kind::Busy, "{error}");
    // A socket can't be opened at all.
    fs::remove_file(out.join("d/f")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(out.join("d/f")).unwrap();
    let error = files.open_again(number, &file("d/f"), made).unwrap_err();
    assert_eq!(error.kind(), onefold_core::Kind::Busy, "{error}");
    // Another directory has the name: it is known by its identity when it is opened anew.
    files.forget_directories();
    let number = restorer.number(&files, &file("d/f")).unwrap();
    fs::rename(out.join("d"), out.join("was")).unwrap();
    fs::create_dir(out.join("d")).unwrap();
    let error = files.make(number, &file("d/h")).unwrap_err();
    assert_eq!(error.kind(), onefold_core::Kind::Busy, "{error}");
    assert_eq!(fs::read_dir(out.join("d")).unwrap().count(), 0);
}

/// A file system may give the number of a removed file to the next one that is made: the two are no file
/// that two names of the tree share.
#[test]
fn a_number_that_is_given_again_during_a_restore_in_place_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let choices = Choices { in_place: true, ..Choices::default() };
    let mut restorer = Restorer::new(dir.path(), choices).unwrap();
    let files = restorer.files();
    for n in 0..100 {
        let file = entry(&format!("f{n}"), What::File { bytes: 0, data: Vec::new() });
        let number = restorer.number(&files, &file).unwrap();
        files.make(number, &file).unwrap();
        fs::remove_file(dir.path().join(format!("f{n}"))).unwrap();
        restorer.make(&entry(&format!("d{n}"), What::Directory)).unwrap();
        fs::remove_dir(dir.path().join(format!("d{n}"))).unwrap();
        restorer.make(&entry(&format!("p{n}"), What::Fifo)).unwrap();
        fs::remove_file(dir.path().join(format!("p{n}"))).unwrap();
    }
}

/// A socket can't be opened, and a pipe that nobody reads can't be opened for writing: both are errors of
/// the system that look like a device that is gone.
#[test]
fn rule_05_a_socket_or_a_pipe_in_the_place_of_a_restored_file_is_told_as_one() {
    for in_place in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let choices = Choices { in_place, ..Choices::default() };
        let mut restorer = Restorer::new(dir.path(), choices).unwrap();
        let files = restorer.files();
        // What was made stays open, so that the system gives its number to nothing else.
        let mut kept = Vec::new();
        for name in ["socket", "pipe"] {
            let file = entry(name, What::File { bytes: 0, data: Vec::new() });
            let number = restorer.number(&files, &file).unwrap();
            let (open, made) = files.make(number, &file).unwrap();
            let path = dir.path().join(name);
            std::fs::remove_file(&path).unwrap();
            if name == "socket" {
                drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            } else {
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                let flags = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, &path, flags, mode, 0).unwrap();
            }
            kept.push(open);
            let error = files.open_again(number, &file, made).unwrap_err();
            assert_eq!(error.kind(), onefold_core::Kind::Busy, "{name} {in_place}: {error}");
            assert!(error.to_string().contains("somebody replaced it"), "{error}");
            // As a file of an earlier restore neither stays.
            let there = files.old(number, &file, &|_| None).unwrap();
            assert!(there.is_none(), "{name} {in_place}");
        }
    }
}

/// A user removes a file that the walk has seen, and the system gives its number to another user's.
#[test]
fn rule_07_a_file_that_got_the_number_of_a_removed_one_is_no_name_of_that() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["a", "b"] {
        fs::create_dir(path(name)).unwrap();
    }
    for opens_late in [false, true] {
        for name in ["a/first", "b/new", "b/other"] {
            let _ = fs::remove_file(path(name));
        }
        fs::write(path("a/first"), "of one user").unwrap();
        fs::hard_link(path("a/first"), path("a/second")).unwrap();
        let number = fs::metadata(path("a/first")).unwrap().ino();
        let options = Options { opens_late, ..Options::default() };
        let mut walk = Walk::new(dir.path(), options).unwrap();
        while walk.next().unwrap().unwrap().entry.path != b"a/first" {}
        fs::remove_file(path("a/first")).unwrap();
        fs::remove_file(path("a/second")).unwrap();
        fs::write(path("b/new"), "of another user").unwrap();
        fs::hard_link(path("b/new"), path("b/other")).unwrap();
        if fs::metadata(path("b/new")).unwrap().ino() != number {
            println!("NOT TESTED: the file system gives no number again at once");
            return;
        }
        let rest: Vec<_> =
            walk.map(Result::unwrap).map(|one| (one.entry.path, one.entry.what)).collect();
        let what = |name: &str| &rest.iter().find(|(path, _)| path == name.as_bytes()).unwrap().1;
        assert!(matches!(what("b/new"), What::File { .. }), "{:?}", what("b/new"));
        assert_eq!(*what("b/other"), What::HardLink { target: b"b/new".to_vec() });
    }
}

/// Makes something under a name until the file system gives it this number; false where it does
/// not.
fn has_number_again(path: &Path, number: u64, make: &dyn Fn(&Path)) -> bool {
    let mut others = Vec::new();
    for n in 0..2000 {
        make(path);
        if fs::symlink_metadata(path).unwrap().ino() == number {
            break;
        }
        let other = path.with_extension(n.to_string());
        fs::rename(path, &other).unwrap();
        others.push(other);
    }
    for other in others {
        let _ = fs::remove_file(&other).or_else(|_| fs::remove_dir(&other));
    }
    fs::symlink_metadata(path).is_ok_and(|there| there.ino() == number)
}

/// A user removes what was just made in his directory, and the system gives its number to what he
/// makes.
#[test]
fn rule_05_what_has_the_number_of_a_removed_entry_is_not_filled() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = |name: &str| dir.path().join(name);
    let number = |name: &str| fs::symlink_metadata(path(name)).unwrap().ino();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path, Some(61_234), Some(61_234)).unwrap();
        }
    };
    let mut restorer = Restorer::new(dir.path(), Choices::default()).unwrap();
    let files = restorer.files();
    let file = |name: &str| entry(name, What::File { bytes: 3, data: Vec::new() });
    restorer.make(&entry("d", What::Directory)).unwrap();
    let of_directory = restorer.number(&files, &file("d/f")).unwrap();
    let of_root = restorer.number(&files, &file("f")).unwrap();
    let (open, made) = files.make(of_root, &file("f")).unwrap();
    drop(open);
    let (of_d, of_f) = (number("d"), number("f"));
    fs::remove_file(path("f")).unwrap();
    let is_again = has_number_again(&path("f"), of_f, &|path| {
        fs::write(path, "mine").unwrap();
        mode(path, 0o666);
    });
    if !is_again {
        println!("NOT TESTED: the file system gives no number again");
        return;
    }
    files.open_again(of_root, &file("f"), made).unwrap_err();
    let link = entry("g", What::HardLink { target: b"f".to_vec() });
    files.link(of_root, &link, b"f").unwrap_err();
    fs::remove_dir(path("d")).unwrap();
    let is_again = has_number_again(&path("d"), of_d, &|path| {
        fs::create_dir(path).unwrap();
        mode(path, 0o777);
    });
    if !is_again {
        println!("NOT TESTED: the file system gives no number of a directory again");
        return;
    }
    files.make(of_directory, &file("d/f")).unwrap_err();
    assert_eq!(fs::read_dir(path("d")).unwrap().count(), 0);
    restorer.made_all().unwrap();
    restorer.finish(&entry("d", What::Directory)).unwrap_err();
}

#[test]
fn rule_06_a_list_that_is_handed_down_goes_also_where_the_own_one_can_not_be_set() {
    const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let set = std::process::Command::new("setfacl")
        .args(["-d", "-m", "u:61234:rwx,m::rwx"])
        .arg(dir.path())
        .status();
    if !set.is_ok_and(|set| set.success()) {
        println!("NOT TESTED: no default ACLs here");
        return;
    }
    let has = |name: &str, list: &str| {
        rustix::fs::getxattr(dir.path().join(name), list, &mut [0; 0]).is_ok()
    };
    assert!(has("", LISTS[1]));
    let mut restorer = Restorer::new(dir.path(), Choices::default()).unwrap();
    // No file system takes such a list.
    let refused = |list: &str| (list.as_bytes().to_vec(), vec![2, 0, 0, 0, 0x77]);
    let mut file = entry("f", What::File { bytes: 0, data: Vec::new() });
    let mut below = entry("d", What::Directory);
    (file.mode, below.mode) = (0o640, 0o750);
    file.attributes = vec![refused(LISTS[0])];
    below.attributes = LISTS.map(refused).to_vec();
    restorer.make(&below).unwrap();
    // The directory was there, and is another user's in a restore in place.
    std::process::Command::new("setfacl")
        .args(["-d", "-m", "u:61234:rwx"])
        .arg(dir.path().join("d"))
        .status()
        .unwrap();
    let made = restorer.make(&file).unwrap().unwrap();
    restorer.finish_file(&file, &made).unwrap();
    restorer.made_all().unwrap();
    restorer.finish(&below).unwrap();
    let left_out = restorer.end().unwrap();
    assert_eq!(left_out.attributes, 3);
    for name in ["f", "d"] {
        assert!(!has(name, LISTS[0]) && !has(name, LISTS[1]), "{name}");
    }
    // A destination that is made gets no such list, either.
    drop(Restorer::new(&dir.path().join("new/deep"), Choices::default()).unwrap());
    for name in ["new", "new/deep"] {
        assert!(!has(name, LISTS[0]) && !has(name, LISTS[1]), "{name}");
    }
}
