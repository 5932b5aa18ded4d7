//! An upgrade that is cut off, refused, or has no room; and other processes that know the archive as
//! it was before.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod golden;
mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use golden::{Form, forms, text};
use onefold_archive::{
    Archive, Collection, CollectionOptions, Ingest, Label, Newer, Reader, Settings,
    features_to_come, find_label, renew_snapshot, upgrade, upgrade_telling,
};
use onefold_backend::Directory;
use onefold_core::{Error, Files, Kind, Result};
use support::{Call, Watch, Watched, get, put};

/// Bytes of a place of the label.
const PLACE: u64 = 4096;

struct Desk {
    dir: tempfile::TempDir,
    form: Form,
}

impl Desk {
    /// An archive of one of the forms on one node, by its name.
    fn new(name: &str) -> Desk {
        let dir =
            tempfile::Builder::new().prefix("upgrade").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let form = forms().into_iter().find(|form| form.name() == name).unwrap();
        let desk = Desk { dir: dir.unwrap(), form };
        form.fill(&desk.at());
        desk
    }

    fn at(&self) -> PathBuf {
        self.dir.path().join("a")
    }

    fn open(&self) -> Arc<Archive> {
        self.form.open(&self.at(), u64::MAX)
    }

    /// The same, with each call to its files watched.
    fn open_watched(&self, watch: Watch) -> Arc<Archive> {
        let files = Arc::new(Directory::open(&self.at(), true).unwrap());
        let settings = Settings { log_ahead_bytes: 4096, ..Settings::default() };
        Arc::new(Archive::open(Arc::new(Watched { files, watch }), true, settings).unwrap())
    }

    fn is_upgraded(&self) -> bool {
        let label = find_label(&Directory::open(&self.at(), false).unwrap()).unwrap();
        features_to_come(&label).is_empty()
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.at()).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn copied(&self) -> Desk {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let desk = Desk { dir, form: self.form };
        let files = Directory::create(&desk.at()).unwrap();
        for name in self.names() {
            drop(files.create(&name).unwrap());
            fs::write(desk.at().join(&name), fs::read(self.at().join(&name)).unwrap()).unwrap();
        }
        desk
    }
}

/// Makes so many changes, and fails from then on.
fn only(left: &Arc<AtomicI64>) -> Watch {
    let left = left.clone();
    Arc::new(move |_: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| match call {
        Call::Change if left.fetch_sub(1, Relaxed) <= 0 => Err(Error::new(Kind::Io, "no more")),
        _ => does(),
    })
}

fn rot(at: &Path, byte: u64) {
    let file = fs::File::options().read(true).write(true).open(at).unwrap();
    let mut old = [0];
    file.read_exact_at(&mut old, byte).unwrap();
    file.write_all_at(&[!old[0]], byte).unwrap();
}

/// The place of the label that was written last.
fn newest_place(desk: &Desk) -> u64 {
    find_label(&Directory::open(&desk.at(), false).unwrap()).unwrap().generation % 2 * PLACE
}

/// Has a newer program set these bits.
fn set(desk: &Desk, newer: Newer) {
    let files = Directory::open(&desk.at(), true).unwrap();
    let label = find_label(&files).unwrap();
    for generation in label.generation + 1..=label.generation + 2 {
        let label = Label { generation, newer, ..label.clone() };
        let bytes = label.encode(&label.identity()).unwrap();
        files.open("label").unwrap().write_at(label.place(), &bytes).unwrap();
    }
}

#[test]
fn rule_01_features_of_newer_programs_bar_changes_alone_or_nothing() {
    let desk = Desk::new("form-first");
    // A process that has it open learns of it, and goes on by the new label when it opens again.
    let archive = desk.open();
    set(&desk, Newer { to_write: 0, ignored: 1 << 63 });
    assert_eq!(archive.refresh().unwrap_err().kind(), Kind::Stopped);
    drop(archive);
    let label = || find_label(&Directory::open(&desk.at(), false).unwrap()).unwrap();
    let before = label().generation;
    // Each change is a new snapshot, so a new label.
    let archive = desk.form.open(&desk.at(), 0);
    put(&archive, "new", b"content").unwrap();
    drop(archive);
    let label = label();
    assert!(label.generation > before);
    assert_eq!(label.newer, Newer { to_write: 0, ignored: 1 << 63 }, "it stays");
    set(&desk, Newer { to_write: 1 << 9, ignored: 0 });
    let files = || Arc::new(Directory::open(&desk.at(), true).unwrap());
    let read = Archive::open(files(), false, Settings::default()).unwrap();
    assert_eq!(get(&Arc::new(read), "new").unwrap(), b"content");
    let refused = Archive::open(files(), true, Settings::default()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("feature 9 of those that are needed to change it"));
}

#[test]
fn rule_17_an_upgrade_tells_how_far_it_is() {
    let desk = Desk::new("form-first");
    let archive = desk.open();
    let containers = archive.tables().containers.len() as u64;
    let mut told = Vec::new();
    assert!(upgrade_telling(&archive, &mut |done, most| told.push((done, most))).unwrap());
    // Both copies of each.
    assert!(containers > 0 && told.last() == Some(&(2 * containers, 2 * containers)), "{told:?}");
    assert!(told.is_sorted() && told.iter().all(|(_, most)| *most == 2 * containers), "{told:?}");
    told.clear();
    assert!(!upgrade_telling(&desk.open(), &mut |done, most| told.push((done, most))).unwrap());
    assert!(told.is_empty());
}

#[test]
fn rule_01_an_upgrade_that_is_cut_off_leaves_the_old_archive_or_the_new_one() {
    for name in ["form-first", "form-trees-clones-leaves"] {
        let desk = Desk::new(name);
        let (mut old, mut new) = (0, 0);
        for first in 0.. {
            let cut = desk.copied();
            let left = Arc::new(AtomicI64::new(i64::MAX));
            let archive = cut.open_watched(only(&left));
            left.store(first, Relaxed);
            let ended = upgrade(&archive);
            drop(archive);
            let is_new = cut.is_upgraded();
            assert!(is_new || ended.is_err(), "{name} {first}");
            (old, new) = (old + u32::from(!is_new), new + u32::from(is_new));
            cut.form.is_whole(&cut.open());
            if is_new && ended.is_err() {
                // The place that was written is lost: nothing was appended, and nothing is missing.
                let lost = cut.copied();
                rot(&lost.at().join("label"), newest_place(&lost) + 20);
                lost.form.is_whole(&lost.open());
                put(&lost.open(), "more", &text(300)).unwrap();
                lost.form.is_whole(&lost.open());
                // The last snapshot is lost: the one before is of the new kinds too.
                let lost = cut.copied();
                let last = find_label(&Directory::open(&lost.at(), false).unwrap()).unwrap();
                rot(&lost.at().join(format!("snapshot-{:010}", last.snapshot)), 60);
                assert!(renew_snapshot(&lost.open()).unwrap());
                lost.form.is_whole(&lost.open());
            }
            // It goes on, and is completed.
            put(&cut.open(), "more", &text(300)).unwrap();
            assert_eq!(upgrade(&cut.open()).unwrap(), !is_new, "{name} {first}");
            cut.form.is_whole(&cut.open());
            assert!(cut.is_upgraded() && get(&cut.open(), "more").unwrap() == text(300));
            if ended.is_ok() {
                break;
            }
        }
        assert!(old > 10 && new > 2, "{name}: {old} {new}");
    }
}

#[test]
fn rule_01_what_is_appended_after_an_upgrade_survives_the_loss_of_a_place_of_the_label() {
    let desk = Desk::new("form-trees");
    // The second place of the label is not written.
    let written = Arc::new(AtomicU64::new(0));
    let watch: Watch = {
        let written = written.clone();
        Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| match call {
            // A write and a sync for each place.
            Call::Change if name == "label" && written.fetch_add(1, Relaxed) >= 2 => {
                Err(Error::new(Kind::Io, "no more"))
            }
            _ => does(),
        })
    };
    let archive = desk.open_watched(watch);
    // Otherwise it would be written once more.
    archive.rename("last", "later").unwrap();
    archive.rename("later", "last").unwrap();
    written.store(0, Relaxed);
    upgrade(&archive).unwrap_err();
    drop(archive);
    assert!(desk.is_upgraded());
    put(&desk.open(), "more", &text(300)).unwrap();
    for place in [0, PLACE] {
        let lost = desk.copied();
        rot(&lost.at().join("label"), place + 20);
        assert!(lost.is_upgraded());
        assert!(get(&lost.open(), "more").unwrap() == text(300));
        lost.form.is_whole(&lost.open());
    }
}

#[test]
fn rule_01_a_process_that_knows_the_archive_as_it_was_changes_and_shows_nothing() {
    let desk = Desk::new("form-first");
    let (idle, reader) = (desk.open(), desk.open());
    assert!(upgrade(&desk.open()).unwrap());
    let errors = [
        idle.rename("last", "later").unwrap_err(),
        put(&idle, "more", &text(300)).unwrap_err(),
        reader.refresh().unwrap_err(),
        Reader::new(&reader).err().unwrap(),
        upgrade(&idle).unwrap_err(),
    ];
    for error in errors {
        let is_told = error.to_string().contains("was upgraded meanwhile");
        assert!(error.kind() == Kind::Stopped && is_told, "{error}");
    }
    assert!(desk.is_upgraded());
    desk.form.is_whole(&desk.open());
}

#[test]
fn rule_01_an_upgrade_is_refused_while_others_are_at_work() {
    let desk = Desk::new("form-first");
    let names = desk.names();
    let refused = |holder: &str| {
        let error = upgrade(&desk.open()).unwrap_err();
        assert!(error.kind() == Kind::Busy && error.to_string().contains(holder), "{error}");
        assert!(!desk.is_upgraded());
    };
    let other = desk.open();
    let reading = Reader::new(&other).unwrap();
    refused("a reader");
    drop(reading);
    let putting = Ingest::begin(&other, false, true).unwrap();
    refused("a put, a backup, a server");
    drop(putting);
    let options = CollectionOptions { reserve_bytes: 4096, ..support::options(1_000_000) };
    let collecting = Collection::begin(&other, options).unwrap();
    refused("a gc");
    drop(collecting);
    assert_eq!(desk.names(), names);
    let to_read = Directory::open(&desk.at(), false).unwrap();
    let to_read = Archive::open(Arc::new(to_read), false, Settings::default()).unwrap();
    assert_eq!(upgrade(&to_read).unwrap_err().kind(), Kind::InvalidInput);
    assert!(upgrade(&desk.open()).unwrap());
}

#[test]
fn rule_01_an_upgrade_without_room_leaves_the_archive_as_it_was() {
    for name in ["form-first", "form-trees-clones-leaves"] {
        let desk = Desk::new(name);
        let tables = |desk: &Desk| fs::metadata(desk.at().join("tables")).map_or(0, |it| it.len());
        let (names, bytes) = (desk.names(), tables(&desk));
        let mut refused = 0;
        for first in 0.. {
            let full = desk.copied();
            // Names can be removed, and files cut, on a full disk.
            let left = Arc::new(AtomicI64::new(i64::MAX));
            let watch: Watch = {
                let left = left.clone();
                Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
                    let files = ["snapshot-", "log-", "tables", "maps"];
                    let takes_room = matches!(call, Call::Change)
                        && files.iter().any(|prefix| name.starts_with(prefix));
                    if takes_room && left.fetch_sub(1, Relaxed) == 0 {
                        return Err(Error::new(Kind::NoSpace, "no room"));
                    }
                    does()
                })
            };
            let archive = full.open_watched(watch);
            left.store(first, Relaxed);
            let error = match upgrade(&archive) {
                // Space for a log that was lost in a crash is not needed.
                Ok(_) if refused == 0 && first < 3 => continue,
                Err(error) if !full.is_upgraded() => error,
                _ => break,
            };
            refused += 1;
            let is_told = error.to_string().contains("as before");
            assert!(error.kind() == Kind::NoSpace && is_told, "{name} {first}: {error}");
            assert!(!full.is_upgraded());
            assert_eq!((full.names(), tables(&full)), (names.clone(), bytes), "{name} {first}");
            // The same process goes on.
            archive.rename("last", "later").unwrap();
            archive.rename("later", "last").unwrap();
            full.form.is_whole(&full.open());
        }
        assert!(refused > 5, "{name}: {refused}");
    }
}
