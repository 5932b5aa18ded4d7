//! The keys of a sealed archive changed, and destroyed.

use onefold_core::{Error, Kind, Result};
use onefold_seal::{Keys, Random};

use super::{
    archive::Archive,
    key_area::{judged, key_area, no_key, open_file, overwrite, write_copies},
    upgrade::without_writers,
};
use crate::{
    format::{names::KEYS, record::Record},
    rules::Rule,
};

/// Destroys the keys of a sealed archive: a copy of its key area is written that says so and has no
/// keys, then both are overwritten; each step is durable before the next. Nobody opens the archive by
/// them any more. After a crash in between, whoever opens the archive to write ends it. It holds the
/// locks of all who store: a process that waited for them looks whether the keys are still there
/// ([`not_erased`]). Readers go on.
///
/// # Errors
/// `InvalidInput`: the archive is plain or was opened for reading. `Busy`: somebody stores, serves,
/// collects or repairs. Errors of the system.
pub fn erase_keys(archive: &Archive, random: &dyn Random) -> Result<()> {
    let Some(sealing) = archive.identity.sealing().filter(|_| archive.is_writable()) else {
        let why = "the archive is not encrypted, or was opened for reading only";
        return Err(Error::new(Kind::InvalidInput, why));
    };
    let _locks = without_writers(archive, "the erasure of its keys")?;
    archive.exclusively(|| {
        let opener = archive.settings.opener.of().ok_or_else(no_key)?;
        let file = open_file(&*archive.files)?;
        let mut keys = judged(&*file, &archive.label, true, &archive.settings, opener)?.keys;
        keys.saw(sealing.keys());
        write_copies(&*file, &keys.erased_area(random)?, [true, false])?;
        overwrite(&*file, random)
    })
}

/// Errors when the keys of a sealed archive were destroyed since it was opened: nobody could ever
/// read what would be stored now.
pub(crate) fn not_erased(archive: &Archive) -> Result<()> {
    if archive.label.sealed.is_none() {
        return Ok(());
    }
    match key_area(&*archive.files) {
        Ok(area) if !area.is_erased() => Ok(()),
        Err(error) if error.kind() != Kind::Corrupt => Err(error),
        Ok(_) | Err(_) => Err(Error::new(
            Kind::Stopped,
            format!(
                "the keys of the archive (`{KEYS}`) were destroyed, or can't be read any more: nobody \
                 could read what is stored now"
            ),
        )),
    }
}

/// Changes the keys of a sealed archive, by the key that its opener is asked for: `change` gets them
/// as they are. Durable on return. Data stay sealed as they are.
///
/// # Errors
/// Those of `change`, after which nothing was changed; `InvalidInput`: the archive is plain or was
/// opened for reading. Errors of the system: the keys are the old ones or the new ones.
pub fn change_keys(
    archive: &Archive,
    change: impl FnOnce(&mut Keys, &dyn Random) -> Result<()>,
) -> Result<()> {
    change_and_append(archive, Vec::new(), archive.keeps(Rule::BothKeyAreasWritten), change)
}

/// The same with records that the frame behind the change has; `both` copies of the key area are written.
pub(super) fn change_and_append(
    archive: &Archive,
    records: Vec<Record>,
    both: bool,
    change: impl FnOnce(&mut Keys, &dyn Random) -> Result<()>,
) -> Result<()> {
    let refused = |why: &str| Err(Error::new(Kind::InvalidInput, why));
    if !archive.is_writable() {
        return refused("the archive was opened for reading only");
    }
    let Some(sealing) = archive.identity.sealing() else {
        return refused(
            "the archive is not encrypted, and an archive can't become so: make another one",
        );
    };
    archive.append_behind(records, || {
        let opener = archive.settings.opener.of().ok_or_else(no_key)?;
        let file = open_file(&*archive.files)?;
        let mut keys = judged(&*file, &archive.label, true, &archive.settings, opener)?.keys;
        let random = opener.random();
        change(&mut keys, &*random)?;
        keys.saw(sealing.keys());
        let area = keys.next_area(&*random)?;
        write_copies(&*file, &area, [true, both])?;
        archive.files.confirm()?;
        sealing.saw_keys(area.sequence());
        Ok(())
    })
}
