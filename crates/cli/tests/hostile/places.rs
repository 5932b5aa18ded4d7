//! Directories and links that another user has in his hands while root restores: he gets no link of
//! root's with a target that he chose, and sees nothing that is restored for somebody else.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::Output,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use super::actors::{STRANGER, Street};

/// Whose files are restored.
const OWNER: u32 = STRANGER + 1;

/// The command, run by root, which must not wait for anybody.
fn run(street: &Street, arguments: &str) -> Output {
    let mut command = street.program(0, Path::new("timeout"));
    command.args(["60", "./onefold"]).args(arguments.split(' ')).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", told(output));
    told(output)
}

fn give(path: &Path, user: u32, mode: u32) {
    chown(path, Some(user), Some(user)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Makes a directory with so many files that everybody may read.
fn directory(at: &Path, user: u32, mode: u32, files: usize) {
    fs::create_dir(at).unwrap();
    for n in 0..files {
        fs::write(at.join(format!("f{n}")), "secret").unwrap();
        give(&at.join(format!("f{n}")), user, 0o644);
    }
    give(at, user, mode);
}

fn owner_and_mode(at: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(at).unwrap();
    (found.uid(), found.mode() & 0o7777)
}

/// Runs something while another thread does something again and again.
fn during<T>(mut does: impl FnMut() + Send, runs: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                does();
            }
        });
        let ran = runs();
        done.store(true, Relaxed);
        ran
    })
}

fn is_aside(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(".onefold-"))
}

#[test]
#[ignore = "needs root"]
fn rule_05_a_link_that_is_restored_is_at_no_moment_roots_in_a_directory_of_another_user() {
    let street = Street::new();
    let home = street.home("home", STRANGER);
    let other = street.home("other", OWNER);
    let links = |at: &Path, user: u32| {
        for n in 0..40 {
            symlink("/etc", at.join(format!("l{n}"))).unwrap();
            std::os::unix::fs::lchown(at.join(format!("l{n}")), Some(user), Some(user)).unwrap();
        }
    };
    links(&home, STRANGER);
    links(&other, OWNER);
    ok(&run(&street, "create archive a"));
    ok(&run(&street, &format!("backup a {} {} --set s", home.display(), other.display())));
    for n in 0..40 {
        fs::remove_file(home.join(format!("l{n}"))).unwrap();
        fs::remove_file(other.join(format!("l{n}"))).unwrap();
    }
    let (mut seen, mut open, mut taken) = (Vec::new(), Vec::new(), 0);
    let watch = || {
        for entry in fs::read_dir(&home).unwrap().flatten() {
            let Ok(found) = fs::symlink_metadata(entry.path()) else { continue };
            if found.is_symlink() && found.uid() == 0 {
                seen.push(entry.path());
            }
            if is_aside(&entry.file_name()) {
                if (found.uid(), found.mode() & 0o077) != (0, 0) {
                    open.push(entry.path());
                }
                // As the owner of the directory above may do.
                let _ = fs::rename(entry.path(), home.join(format!("taken{taken}")));
                taken += 1;
            }
        }
    };
    // Whoever makes a link waits before he gives it away.
    let output = during(watch, || {
        let mut command = street.program(0, Path::new("strace"));
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fchownat"]);
        command.args(["-e", "inject=fchownat:delay_enter=20000"]);
        command.args("./onefold restore a s -C / --in-place".split(' ')).output().unwrap()
    });
    ok(&output);
    assert!(seen.is_empty() && open.is_empty(), "{seen:?} {open:?}");
    for (at, user) in [(&home, STRANGER), (&other, OWNER)] {
        for entry in fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()) {
            let found = fs::symlink_metadata(&entry).unwrap();
            match found.is_symlink() {
                true => assert_eq!(found.uid(), user, "{}", entry.display()),
                false => assert_eq!(fs::read_dir(&entry).unwrap().count(), 0, "nothing is left"),
            }
        }
        let whole = (0..40).all(|n| fs::read_link(at.join(format!("l{n}"))).is_ok());
        assert!(whole, "{}", at.display());
    }
    // Nobody took it away: then it goes.
    for n in 0..taken {
        let _ = fs::remove_dir(home.join(format!("taken{n}")));
    }
    fs::remove_file(home.join("l7")).unwrap();
    ok(&run(&street, "restore a s -C / --in-place"));
    assert_eq!(fs::read_dir(&home).unwrap().count(), 40);
}

#[test]
#[ignore = "needs root"]
fn rule_05_a_link_of_root_where_others_may_put_it_leads_nowhere() {
    let street = Street::new();
    let own = street.home("own", 0);
    fs::create_dir(own.join("deep")).unwrap();
    fs::write(street.path("letter"), "dear").unwrap();
    for place in ["user", "open", "group", "sticky", "mine"] {
        let at = street.home(place, 0);
        symlink("../own", at.join("x")).unwrap();
    }
    give(&street.path("user"), STRANGER, 0o755);
    give(&street.path("open"), 0, 0o777);
    give(&street.path("group"), 0, 0o775);
    chown(street.path("group"), None, Some(STRANGER)).unwrap();
    give(&street.path("sticky"), 0, 0o1777);
    give(&street.path("mine"), 0, 0o775);
    ok(&run(&street, "create archive a"));
    ok(&run(&street, "put a tree -r own"));
    ok(&run(&street, "put a letter letter"));
    ok(&run(&street, "backup a letter --set s"));
    for place in ["user", "open", "group"] {
        for verb in [
            "restore a s -C HERE/x",
            "restore a s -C HERE/x/new --atomic",
            "restore a s -C HERE/x --in-place --delete --force",
            "get a tree -C HERE/x/new",
            "get a letter --output HERE/x/letter",
            "put a other -r HERE/x/deep",
            "backup a HERE/x/deep --set t",
            "mount a HERE/x",
        ] {
            let output = run(&street, &verb.replace("HERE", place));
            assert_eq!(output.status.code(), Some(1), "{place} {verb}: {}", told(&output));
            assert!(told(&output).contains("link"), "{place} {verb}: {}", told(&output));
            assert_eq!(fs::read_dir(&own).unwrap().count(), 1, "{place} {verb}");
        }
    }
    // A user's own in his own directory, to which his own group may write, as on most systems.
    let home = street.home("home", OWNER);
    fs::create_dir(home.join("real")).unwrap();
    symlink("real", home.join("x")).unwrap();
    std::os::unix::fs::lchown(home.join("x"), Some(OWNER), Some(OWNER)).unwrap();
    for (mode, follows) in [(0o775, true), (0o777, false)] {
        fs::set_permissions(&home, fs::Permissions::from_mode(mode)).unwrap();
        let output = street.onefold(OWNER, "estimate home/x").output().unwrap();
        assert_eq!(output.status.success(), follows, "{mode:o}: {}", told(&output));
    }
    // Where `protected_hardlinks` is off anybody gives a link of root's from elsewhere a name there.
    let (from, to) = (street.path("mine").join("x"), street.path("sticky").join("y"));
    fs::hard_link(&from, &to).unwrap();
    let output = run(&street, "get a letter --output sticky/y/letter");
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert_eq!(fs::read_dir(&own).unwrap().count(), 1);
    fs::remove_file(to).unwrap();
    // Root's own links in root's own directories lead where root likes.
    for (n, place) in ["sticky", "mine"].into_iter().enumerate() {
        ok(&run(&street, &format!("get a letter --output {place}/x/letter{n}")));
        assert_eq!(fs::read(own.join(format!("letter{n}"))).unwrap(), b"dear");
    }
}

/// A place where everybody may make something, with a directory of the owner's that is in a backup.
struct Lost {
    street: Street,
    public: PathBuf,
    private: PathBuf,
}

impl Lost {
    fn new(files: usize) -> Lost {
        let street = Street::new();
        let public = street.home("public", 0);
        fs::set_permissions(&public, fs::Permissions::from_mode(0o1777)).unwrap();
        let private = public.join("private");
        directory(&private, OWNER, 0o700, files);
        directory(&public.join("zone"), OWNER, 0o755, 1);
        ok(&run(&street, "create archive a"));
        ok(&run(&street, &format!("backup a {} --set s", public.display())));
        ok(&run(&street, &format!("put a t -r {}", public.display())));
        fs::remove_dir_all(&private).unwrap();
        Lost { street, public, private }
    }

    /// Restores, and tells whether somebody else could enter the directory when a file was in it.
    fn watched(&self, arguments: &str) -> (Output, bool) {
        let mut was_open = false;
        let look = || {
            if self.private.join("f0").exists()
                && let Ok(found) = fs::metadata(&self.private)
            {
                let closed = found.mode() & 0o077 == 0 && found.uid() != STRANGER;
                was_open |= !closed;
            }
        };
        (during(look, || run(&self.street, arguments)), was_open)
    }
}

#[test]
#[ignore = "needs root"]
fn rule_05_a_directory_that_a_user_made_first_shows_him_nothing_of_what_is_restored() {
    let lost = Lost::new(1500);
    let to_public = format!("get a t -C {} --in-place", lost.public.display());
    for verb in ["restore a s -C / --in-place", &to_public] {
        for planted in [false, true] {
            directory(&lost.private, STRANGER, 0o777, 0);
            let open = fs::File::open(&lost.private).unwrap();
            if planted {
                fs::write(lost.private.join(".profile"), "by alice").unwrap();
                fs::write(lost.private.join("f1"), "by alice").unwrap();
                give(&lost.private.join("f1"), STRANGER, 0o666);
            }
            let (output, was_open) = lost.watched(verb);
            let told = ok(&output);
            assert!(!was_open, "{verb} {planted}");
            assert_eq!(owner_and_mode(&lost.private), (OWNER, 0o700), "{verb} {planted}");
            assert_eq!(owner_and_mode(&lost.private.join("f1")), (OWNER, 0o644));
            assert_eq!(fs::read(lost.private.join("f1")).unwrap(), b"secret");
            assert_eq!(told.contains(".profile"), planted, "{told}");
            assert_eq!(told.contains(&format!("user {STRANGER}")), planted, "{told}");
            // Who held it open learns no names, where nothing of his was in it.
            let names = rustix::fs::Dir::read_from(&open).unwrap().flatten().count();
            assert!(planted || names <= 2, "{names}");
            fs::remove_dir_all(&lost.private).unwrap();
        }
    }
}

#[test]
#[ignore = "needs root"]
fn rule_05_who_makes_a_directory_again_and_again_keeps_nobody_from_a_restore() {
    let lost = Lost::new(20);
    let spare = lost.public.join("spare");
    let again = || {
        if !spare.exists() {
            directory(&spare, STRANGER, 0o777, 0);
        }
        let (from, to) = (&spare, &lost.private);
        let here = rustix::fs::CWD;
        let _ = rustix::fs::renameat_with(here, from, here, to, rustix::fs::RenameFlags::NOREPLACE);
    };
    for _ in 0..40 {
        directory(&lost.private, STRANGER, 0o777, 0);
        let output = during(again, || run(&lost.street, "restore a s -C / --in-place"));
        ok(&output);
        assert_eq!(owner_and_mode(&lost.private), (OWNER, 0o700));
        assert_eq!(fs::read_dir(&lost.private).unwrap().count(), 20);
        fs::remove_dir_all(&lost.private).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn rule_05_files_go_through_no_directory_that_another_user_made() {
    let lost = Lost::new(9);
    fs::remove_file(lost.public.join("zone/f0")).unwrap();
    for (user, mode) in [(STRANGER, 0o777), (STRANGER, 0o700)] {
        directory(&lost.private, user, mode, 0);
        let (private, zone) = (lost.private.display(), lost.public.display());
        let paths = format!("{private}/f3 {private}/f7 {zone}/zone/f0");
        let output = run(&lost.street, &format!("restore a s {paths} -C / --in-place"));
        assert_eq!(output.status.code(), Some(3), "{}", told(&output));
        for named in ["f3", "f7", &format!("user {STRANGER}")] {
            assert!(told(&output).contains(named), "{named}: {}", told(&output));
        }
        assert_eq!(owner_and_mode(&lost.private), (STRANGER, mode));
        assert_eq!(fs::read_dir(&lost.private).unwrap().count(), 0);
        assert!(lost.public.join("zone/f0").exists(), "{}", told(&output));
        fs::remove_dir(&lost.private).unwrap();
    }
    // Its owner's, and root's, lead there and stay as they are.
    for (user, mode) in [(OWNER, 0o755), (0, 0o750)] {
        directory(&lost.private, user, mode, 0);
        let at = lost.private.display();
        ok(&run(&lost.street, &format!("restore a s {at}/f3 -C / --in-place")));
        assert_eq!(owner_and_mode(&lost.private), (user, mode));
        assert_eq!(owner_and_mode(&lost.private.join("f3")), (OWNER, 0o644));
        fs::remove_dir_all(&lost.private).unwrap();
    }
}

/// A directory gives more than it gave when it was stored; whoever owned it did that, or root.
#[test]
#[ignore = "needs root"]
fn rule_05_an_old_directory_that_gives_more_than_the_stored_one_is_closed_before_it_is_filled() {
    let lost = Lost::new(1500);
    let list = |at: &Path| {
        let set = std::process::Command::new("setfacl")
            .args(["-m", &format!("u:{STRANGER}:rwx,d:u:{STRANGER}:rwx")])
            .arg(at)
            .status();
        set.is_ok_and(|set| set.success())
    };
    for (user, mode, listed) in
        [(OWNER, 0o777, false), (OWNER, 0o2750, false), (0, 0o755, false), (OWNER, 0o700, true)]
    {
        directory(&lost.private, user, mode, 0);
        if listed && !list(&lost.private) {
            println!("NOT TESTED: there are no lists of rights here");
            return;
        }
        fs::write(lost.private.join("mine"), "kept").unwrap();
        let number = fs::metadata(&lost.private).unwrap().ino();
        let (output, was_open) = lost.watched("restore a s -C / --in-place");
        let told = ok(&output);
        assert!(!was_open && !told.contains("mine"), "{mode:o}: {told}");
        let (now, bits) = owner_and_mode(&lost.private);
        assert_eq!((now, bits & 0o777), (OWNER, 0o700), "{mode:o}");
        let found = fs::metadata(&lost.private).unwrap();
        assert_eq!((found.ino(), found.gid()), (number, OWNER), "{mode:o}");
        assert!(lost.private.join("mine").exists());
        let mut value = [0; 64];
        for list in ["system.posix_acl_access", "system.posix_acl_default"] {
            assert!(rustix::fs::getxattr(&lost.private, list, &mut value[..]).is_err(), "{list}");
        }
        fs::remove_dir_all(&lost.private).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn rule_05_a_user_without_privileges_restores_into_his_own_directories_and_no_strangers() {
    let street = Street::new();
    let home = street.home("home", OWNER);
    directory(&home.join("docs"), OWNER, 0o700, 3);
    directory(&home.join("zone"), OWNER, 0o755, 1);
    let run = |arguments: &str| street.onefold(OWNER, arguments).output().unwrap();
    street.home("archives", OWNER);
    ok(&run("create archive archives/a"));
    ok(&run(&format!("backup archives/a {} --set s", home.display())));
    fs::remove_file(home.join("docs/f1")).unwrap();
    fs::set_permissions(home.join("docs"), fs::Permissions::from_mode(0o777)).unwrap();
    let restore = format!("restore archives/a s {0}/docs {0}/zone -C / --in-place", home.display());
    ok(&run(&restore));
    assert_eq!(owner_and_mode(&home.join("docs")), (OWNER, 0o700));
    assert!(home.join("docs/f1").exists());
    // Somebody else's in the place of his own.
    fs::remove_dir_all(home.join("docs")).unwrap();
    fs::remove_file(home.join("zone/f0")).unwrap();
    directory(&home.join("docs"), STRANGER, 0o777, 0);
    let output = run(&restore);
    assert_eq!(output.status.code(), Some(3), "{}", told(&output));
    assert!(told(&output).contains(&format!("user {STRANGER}")), "{}", told(&output));
    assert_eq!(fs::read_dir(home.join("docs")).unwrap().count(), 0);
    assert_eq!(owner_and_mode(&home.join("docs")), (STRANGER, 0o777));
    assert!(home.join("zone/f0").exists(), "{}", told(&output));
}
