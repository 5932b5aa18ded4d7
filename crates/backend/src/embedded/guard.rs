//! Panics of `redb`, which takes its own file's word for much: on a damaged file some of its
//! assertions fail. Here a panic becomes an error that says so.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use onefold_core::{Error, Kind, Result};
use redb::Database;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// True while a panic of this thread becomes an error: a hook need not print it.
#[must_use]
pub fn is_guarded() -> bool {
    GUARDED.get()
}

/// Runs `work` on the tables; a panic counts as damage. A thread that writes must not continue
/// after it.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let outer = GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    done.unwrap_or_else(|_| Err(Error::new(Kind::Corrupt, "the tables of the store are damaged")))
}

/// An error of `redb`.
pub(super) fn failed(error: impl Into<redb::Error>) -> Error {
    let error = error.into();
    let kind = match &error {
        redb::Error::Corrupted(_) => Kind::Corrupt,
        redb::Error::Io(e) if e.kind() == std::io::ErrorKind::InvalidData => Kind::Corrupt,
        redb::Error::Io(e) if e.kind() == std::io::ErrorKind::StorageFull => Kind::NoSpace,
        _ => Kind::Io,
    };
    Error::new(kind, format!("the tables of the store: {error}"))
}

/// A database that is closed under guard.
pub(super) struct Guarded(Option<Database>);

impl Guarded {
    pub(super) fn of(database: Database) -> Guarded {
        Guarded(Some(database))
    }

    pub(super) fn get(&self) -> Result<&Database> {
        self.0
            .as_ref()
            .ok_or_else(|| Error::new(Kind::Stopped, "the tables of the store are closed"))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let database = self.0.take();
        // Damage was told where the tables were used, or does not matter any more.
        let _ = guarded(|| {
            drop(database);
            Ok(())
        });
    }
}
