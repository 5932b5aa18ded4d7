//! An archive whose keys have roles, in a directory of its own.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses its own part, and panics where it fails"
)]

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
};

use onefold_archive::{
    Archive, Collected, Collection, Format, KeySource, Settings, add_put_key, create_sealed,
    read_key,
};
use onefold_backend::Directory;
use onefold_core::{Files, Result};
use onefold_seal::{Argon, KeyArea, Keys, Opener, Random, RoleKey, RoleSecret, Secret, SlotKind};

use crate::support::{By, Counter, options, secret};

/// The directory.
pub(crate) struct Desk(tempfile::TempDir);

/// Opens by a role key.
pub(crate) struct Has(pub(crate) RoleKey);

impl Opener for Has {
    fn root(&self, _: &KeyArea) -> Result<Secret> {
        panic!("a role key needs no root key")
    }
    fn role(&self, _: &[u8; 16]) -> Result<Option<RoleKey>> {
        Ok(Some(self.0.again()))
    }
    fn refuses_plain(&self) -> bool {
        true
    }
    fn random(&self) -> Arc<dyn Random> {
        By(1, false).random()
    }
}

impl Desk {
    pub(crate) fn new() -> Desk {
        let format = Format::new([7; 16], [8; 32], [9; 16]).with_roles();
        Desk::of(Format { segment_bytes: 16 << 20, ..format })
    }

    /// An archive of this format. The same chance makes all.
    pub(crate) fn of(format: Format) -> Desk {
        let desk = Desk(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let format = Format { reserve_bytes: 4096, ..format };
        let random = Arc::new(Counter(AtomicU64::new(1 << 32)));
        let mut keys = Keys::create(format.id, &*random).unwrap();
        keys.add_slot((SlotKind::File, ""), &secret(1), Argon::LEAST, (0, 0), &*random).unwrap();
        let files = Directory::create(&desk.at()).unwrap();
        create_sealed(&files, &format, &mut keys, random).unwrap();
        desk
    }

    pub(crate) fn at(&self) -> PathBuf {
        self.0.path().join("a")
    }

    pub(crate) fn open_by(&self, opener: Arc<dyn Opener>, writes: bool) -> Result<Arc<Archive>> {
        let settings = Settings { opener: KeySource::new(opener), ..Settings::default() };
        Desk::open(Arc::new(Directory::open(&self.at(), writes).unwrap()), writes, settings)
    }

    /// Opens the archive by files that lead to it.
    pub(crate) fn open(
        files: Arc<dyn Files>,
        writes: bool,
        settings: Settings,
    ) -> Result<Arc<Archive>> {
        let settings = Settings { log_ahead_bytes: 4096, ahead_bytes: 1 << 20, ..settings };
        Archive::open(files, writes, settings).map(Arc::new)
    }

    pub(crate) fn manage(&self) -> Arc<Archive> {
        self.open_by(Arc::new(By(1, false)), true).unwrap()
    }

    pub(crate) fn by(&self, key: &RoleKey) -> Arc<Archive> {
        let writes = matches!(key.secret, RoleSecret::Put(..));
        self.open_by(Arc::new(Has(key.again())), writes).unwrap()
    }

    pub(crate) fn grant(&self, name: &str, sets: &[&str]) -> RoleKey {
        let mut kept = None;
        let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
        add_put_key(&self.manage(), name, &sets, |key| {
            kept = RoleKey::from_text(key.text().as_bytes())?;
            Ok(())
        })
        .unwrap();
        kept.unwrap()
    }

    pub(crate) fn reader(&self) -> RoleKey {
        read_key(&self.manage(), "the vault").unwrap()
    }

    pub(crate) fn collect(&self) -> Collected {
        Collection::begin(&self.manage(), options(9_000)).unwrap().run(&mut |_| {}).unwrap()
    }
}
