//! The key area of a sealed archive: the file `keys`, with two copies one behind the other.
//!
//! A change writes one copy and makes it durable, then the other one. Frames bear its number once both
//! are durable, so that an older key area that somebody puts back is noticed. What a crash leaves, and
//! which copy counts, is told in `onefold_seal`.

use std::sync::Arc;

use onefold_core::{Error, File, Files, Kind, Result};
use onefold_seal::{
    AREA_BYTES, Care, Judged, KeyArea, Keys, Opener, Random, RoleKey, RoleSecret, is_being_erased,
    judge,
};

#[cfg(feature = "planted-bugs")]
use super::broken;
use crate::{
    format::{
        label::Label,
        names::{KEYS, fresh},
        sealing::{Flaws, Sealing},
    },
    rules::Rule,
    settings::Settings,
};

/// Writes the key area of a new archive; durable on return, but for its name.
pub(super) fn write_new(files: &dyn Files, keys: &mut Keys, random: &dyn Random) -> Result<()> {
    let area = keys.next_area(random)?;
    write_copies(&*fresh(files, KEYS)?, &area, [true; 2])
}

/// Overwrites both copies: the second one first, since the first one says that they are being erased.
/// Each is durable before the next.
pub(super) fn overwrite(file: &dyn File, random: &dyn Random) -> Result<()> {
    for copy in [1, 0] {
        let mut noise = vec![0; AREA_BYTES];
        random.fill(&mut noise)?;
        file.write_at((copy * AREA_BYTES) as u64, &noise)?;
        file.sync()?;
    }
    Ok(())
}

/// Writes copies one after the other, and makes each durable before the next.
pub(super) fn write_copies(file: &dyn File, area: &KeyArea, which: [bool; 2]) -> Result<()> {
    for copy in (0..2).filter(|&copy| which[copy]) {
        file.write_at((copy * AREA_BYTES) as u64, area.bytes())?;
        file.sync()?;
    }
    Ok(())
}

/// The bytes of both copies; none of one that can't be read.
fn read_copies(file: &dyn File) -> Result<[Vec<u8>; 2]> {
    let copy = |number: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; AREA_BYTES];
        match file.read_at((number * AREA_BYTES) as u64, &mut bytes) {
            Err(error) if error.kind() == Kind::Io => Ok(Vec::new()),
            read => {
                bytes.truncate(read?);
                Ok(bytes)
            }
        }
    };
    Ok([copy(0)?, copy(1)?])
}

pub(super) fn open_file(files: &dyn Files) -> Result<Arc<dyn File>> {
    files.open(KEYS).map_err(|error| match error.kind() {
        Kind::NotFound => Error::new(
            Kind::Corrupt,
            format!("the archive is encrypted, and its key area (`{KEYS}`) is not there: put it back from a copy"),
        ),
        _ => error,
    })
}

/// The key area as whoever has no key reads it: its higher whole copy. Nothing in it is proven.
///
/// # Errors
/// `NotFound`: the archive is not encrypted. `Corrupt`: no copy is whole.
pub fn key_area(files: &dyn Files) -> Result<KeyArea> {
    let file = files.open(KEYS).map_err(|error| match error.kind() {
        Kind::NotFound => Error::new(Kind::NotFound, "the archive is not encrypted"),
        _ => error,
    })?;
    let [first, second] = read_copies(&*file)?.map(|bytes| KeyArea::decode(&bytes));
    match (first, second) {
        (Ok(first), Ok(second)) if second.sequence() > first.sequence() => Ok(second),
        (Ok(area), _) | (_, Ok(area)) => Ok(area),
        (Err(error), _) => Err(error),
    }
}

/// The copy that counts.
pub(super) fn judged(
    file: &dyn File,
    label: &Label,
    writes: bool,
    settings: &Settings,
    opener: &dyn Opener,
) -> Result<Judged> {
    let copies = read_copies(file)?;
    let care = Care {
        compares_code: settings.keeps(Rule::KeyAreaProven),
        takes_higher: settings.keeps(Rule::HigherKeyAreaCounts),
    };
    let copies = [&copies[0][..], &copies[1][..]];
    let word = (label.sealed.unwrap_or(0), opener.accepts_older());
    let judged = judge(copies, &label.id, word, &mut |area| opener.root(area), care)?;
    if writes && judged.differs != [false; 2] && settings.keeps(Rule::BothKeyAreasWritten) {
        // Who was killed may have left the copy that counts in memory alone. A power cut amid a sync of
        // both would damage both.
        file.sync()?;
        write_copies(file, &judged.area, judged.differs)?;
    }
    Ok(judged)
}

/// The working keys of the archive that has this label, by the key that its opener is asked for, and the
/// number of its key area, if that was opened; `None` of a plain archive. With `writes` an erasure that a
/// crash cut off is brought to its end; nothing else is written.
pub(super) fn unlock(
    files: &dyn Files,
    label: &Label,
    writes: bool,
    settings: &Settings,
) -> Result<Option<(Sealing, Option<u64>)>> {
    let opener = settings.opener.of();
    if label.sealed.is_none() {
        if opener.is_some_and(|opener| opener.refuses_plain()) {
            let why = "a key was given, and the archive is not encrypted: it is not the one that you mean";
            return Err(Error::new(Kind::Denied, why));
        }
        return match files.open(KEYS) {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(_) => Err(Error::new(
                Kind::Denied,
                format!(
                    "the archive is not encrypted, and the keys of an encrypted one lie in it (`{KEYS}`): somebody \
                     may have replaced its label; if the archive is meant to be plain, remove that file"
                ),
            )),
        };
    }
    let opener = opener.ok_or_else(no_key)?;
    let flaws = Flaws {
        salt_by_chance: !settings.keeps(Rule::SaltFromContent),
        plain_groups: !settings.keeps(Rule::GroupsSealed),
        one_fingerprint_key: !settings.keeps(Rule::FingerprintsOfDomain),
        number_unproven: !settings.keeps(Rule::DomainNumberProven),
        older_fingerprints: !settings.keeps(Rule::FingerprintsOfNewestKey),
        own_by_shared: !settings.keeps(Rule::ManageSealsItsOwn),
    };
    if let Some(key) = opener.role(&label.id)? {
        #[cfg(feature = "planted-bugs")]
        let key = match settings.keeps(Rule::PublicKeysFromKeyFile) {
            true => key,
            false => broken::with_public_key(files, key)?,
        };
        return by_role(&key, label, writes, flaws, opener).map(Some);
    }
    let file = open_file(files)?;
    if writes {
        let copies = read_copies(&*file)?;
        #[cfg(feature = "planted-bugs")]
        let copies = match settings.keeps(Rule::CodeBeforeCopying) {
            true => copies,
            false => broken::copied(&*file, copies)?,
        };
        let copies = [&copies[0][..], &copies[1][..]];
        if is_being_erased(copies, &label.id, &mut |area| opener.root(area)) {
            overwrite(&*file, &*opener.random())?;
        }
    }
    let judged = judged(&*file, label, false, settings, opener)?;
    let sealing = match label.roles {
        true => Sealing::managing(&judged.keys, opener.random(), flaws)?,
        false => Sealing::new(&judged.keys, opener.random(), flaws)?,
    };
    Ok(Some((sealing, Some(judged.area.sequence()))))
}

/// The working keys by a role key, and no number: a role key needs nothing of the key area.
fn by_role(
    key: &RoleKey,
    label: &Label,
    writes: bool,
    flaws: Flaws,
    opener: &dyn Opener,
) -> Result<(Sealing, Option<u64>)> {
    let denied = |why: &str| Err(Error::new(Kind::Denied, why));
    if key.shared.id != label.id {
        return denied("the role key is that of another archive");
    }
    if !label.roles {
        return denied(
            "a role key was given, and the keys of the archive have no roles: it is another one",
        );
    }
    if writes && matches!(key.secret, RoleSecret::Read(_)) {
        return denied("this is a read key: it opens what is stored, and changes nothing");
    }
    Ok((Sealing::of_role(key, opener.random(), flaws)?, None))
}

/// Writes a copy of the key area again that is not like the one that counts. The log was read before:
/// an older copy must not take the place of a newer one that is damaged.
pub(super) fn make_equal(files: &dyn Files, label: &Label, settings: &Settings) -> Result<()> {
    let opener = settings.opener.of().ok_or_else(no_key)?;
    judged(&*open_file(files)?, label, true, settings, opener).map(|_| ())
}

/// Errors when frames bear a higher number than the key area has which was opened.
pub(super) fn is_newest(sealing: &Sealing, opened: u64, settings: &Settings) -> Result<()> {
    let accepts = settings.opener.of().is_some_and(|opener| opener.accepts_older());
    if sealing.keys() <= opened || accepts || !settings.keeps(Rule::KeyAreaNumberCompared) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Denied,
        format!(
            "the key area is an older one ({opened}, and the log has seen {}): slots that were removed \
             would be back; --accept-older takes it",
            sealing.keys()
        ),
    ))
}

pub(super) fn no_key() -> Error {
    Error::new(Kind::Denied, "the archive is encrypted: say where its key is with --key")
}
