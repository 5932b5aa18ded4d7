//! Archives of every form that `create` ever made: they open, are read, written and collected, and
//! are upgraded.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod golden;
mod support;

use std::{
    fs,
    path::{Path, PathBuf},
};

use std::sync::Arc;

use golden::{Form, back_up, collect, forms, packed, read_file, text, unpack};
use onefold_archive::{Archive, KeySource, Settings, create_volume_in, features_to_come, upgrade};
use onefold_backend::Directory;
use onefold_core::Kind;
use support::{By, get, put};

fn data(form: Form) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{}.zst", form.name()))
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("forms").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The version of the label at a path, and the features that are needed to read and to write.
fn label(form: Form, at: &Path) -> (u8, u64, u64) {
    let path = if form.nodes { at.join("n0/label") } else { at.join("label") };
    let bytes = fs::read(path).unwrap();
    let place = |at: usize| {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        (bytes[at + 8], number(at + 136), number(at + 144))
    };
    assert_eq!(place(0), place(4096), "{}", form.name());
    place(0)
}

/// Makes the golden archives that are not there. Those that are stay: some later program may make them
/// no more.
#[test]
#[ignore = "it writes into the repository"]
fn make_the_archives_that_are_missing() {
    for form in forms().into_iter().filter(|form| !data(*form).exists()) {
        let dir = directory();
        let at = dir.path().join("a");
        form.fill(&at);
        form.is_whole(&form.open(&at, u64::MAX));
        fs::write(data(form), packed(&at)).unwrap();
    }
}

/// Changes of all kinds that the form knows.
fn change(form: Form, at: &Path, now: Form) {
    let archive = form.open(at, 500);
    put(&archive, "new", &text(200)).unwrap();
    put(&archive, "gone", &text(201)).unwrap();
    archive.remove("gone").unwrap();
    archive.remove("stream-05").unwrap();
    put(&archive, "stream-05", &text(5)).unwrap();
    if now.kinds.trees {
        back_up(&archive, 9);
    }
    if now.kinds.clones {
        archive.clone_volume("v", "another", true, 9).unwrap();
    }
    (0..2).for_each(|_| collect(&archive));
}

fn is_changed(form: Form, at: &Path, now: Form) {
    let archive = form.open(at, u64::MAX);
    form.is_whole(&archive);
    assert!(get(&archive, "new").unwrap() == text(200));
    if now.kinds.trees {
        assert!(read_file(&archive, 9) == text(9));
    }
    let tables = archive.refresh().unwrap();
    assert_eq!(tables.volumes.named("another").is_ok(), now.kinds.clones);
}

#[test]
fn rule_01_archives_of_all_forms_open_are_changed_and_keep_their_form() {
    for form in forms() {
        let dir = directory();
        let at = dir.path().join("a");
        unpack(&fs::read(data(form)).unwrap(), &at);
        assert_eq!(label(form, &at), form.label(), "{}", form.name());
        form.is_whole(&form.open(&at, u64::MAX));
        change(form, &at, form);
        is_changed(form, &at, form);
        assert_eq!(label(form, &at), form.label(), "{}", form.name());
    }
}

#[test]
fn rule_01_archives_of_all_forms_are_upgraded_and_lose_nothing() {
    for form in forms() {
        let dir = directory();
        let at = dir.path().join("a");
        unpack(&fs::read(data(form)).unwrap(), &at);
        let newest = Form { kinds: form.kinds.upgraded(form.sealed), ..form };
        let (archive, idle) = (form.open(&at, u64::MAX), form.open(&at, u64::MAX));
        let is_older = !features_to_come(archive.label()).is_empty();
        assert_eq!(is_older, form.kinds != newest.kinds);
        let before = archive.tables();
        assert_eq!(upgrade(&archive).unwrap(), is_older, "{}", form.name());
        let told = idle.refresh().err().map(|error| error.to_string());
        assert_eq!(told.is_some_and(|told| told.contains("upgraded meanwhile")), is_older);
        drop((archive, idle));
        assert_eq!(label(form, &at), newest.label(), "{}", form.name());
        let archive = form.open(&at, u64::MAX);
        assert!(features_to_come(archive.label()).is_empty() && !upgrade(&archive).unwrap());
        let after = archive.refresh().unwrap();
        assert_eq!((&before.streams, &before.containers), (&after.streams, &after.containers));
        assert_eq!(before.moved_to, after.moved_to);
        assert_eq!(before.sums().all(), after.sums().all());
        form.is_whole(&archive);
        drop(archive);
        change(form, &at, newest);
        is_changed(form, &at, newest);
        assert_eq!(label(form, &at), newest.label(), "{}", form.name());
    }
}

#[test]
fn rule_01_domains_of_an_older_archive_have_volumes_after_an_upgrade() {
    for form in forms().into_iter().filter(|form| form.kinds.domains && !form.kinds.volume_domains)
    {
        let dir = directory();
        let at = dir.path().join("a");
        unpack(&fs::read(data(form)).unwrap(), &at);
        let archive = form.open(&at, u64::MAX);
        let refused = create_volume_in(&archive, 1, "of one", 4096, 1).unwrap_err();
        assert_eq!(refused.kind(), Kind::Unsupported);
        assert!(refused.to_string().contains("onefold upgrade"), "{refused}");
        assert!(features_to_come(archive.label()).contains(&"volumes in domains"));
        assert!(upgrade(&archive).unwrap());
        drop(archive);
        let archive = form.open(&at, u64::MAX);
        create_volume_in(&archive, 1, "of one", 4096, 1).unwrap();
        assert_eq!(archive.tables().volumes.named("of one").unwrap().1.domain, 1);
        assert_eq!(archive.tables().volumes.named("v").unwrap().1.domain, 0);
        form.is_whole(&archive);
    }
}

/// All files of a directory.
fn contents(at: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let all = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = all.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    all.sort();
    all
}

#[test]
fn rule_50_an_archive_of_the_form_that_was_given_up_is_refused_and_stays_as_it_is() {
    let given_up = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/given-up-bit-8.zst");
    // Whole, and with a label of which one place is damaged.
    for damaged in [None, Some(20), Some(4096 + 20)] {
        let dir = directory();
        let at = dir.path().join("a");
        unpack(&fs::read(&given_up).unwrap(), &at);
        let mut label = fs::read(at.join("label")).unwrap();
        if let Some(damaged) = damaged {
            label[damaged] ^= 1;
            fs::write(at.join("label"), &label).unwrap();
        }
        let before = contents(&at);
        for writes in [false, true] {
            let files = Arc::new(Directory::open(&at, writes).unwrap());
            let opener = KeySource::new(Arc::new(By(1, false)));
            let settings = Settings { opener, ..Settings::default() };
            let refused = Archive::open(files, writes, settings).err().unwrap();
            let said = refused.to_string();
            let is_told =
                refused.kind() == Kind::Unsupported && said.contains("given up (feature 8)");
            assert!(is_told, "{said}");
        }
        assert!(contents(&at) == before, "{damaged:?}");
    }
}
