//! The keys of a sealed archive change, and whoever holds its files attacks them.
//!
//! The model knows which secrets open the archive. A change that was cut off may be there or not. At
//! rest, old and forged key areas are put in place of the true ones: a secret that was removed must not
//! open by them, and no forged copy may replace a good one. No file may show what was stored, and no
//! counter of a key may meet two contents, though all processes draw the same random numbers.

use std::{collections::BTreeSet, sync::Arc};

use onefold_archive::{Archive, Format, KeySource, Settings, change_keys, create_sealed};
use onefold_core::{Error, Files, Kind, Result, checksum};
use onefold_seal::{
    AREA_BYTES, Argon, Care, Head, KeyArea, Keys, Opener, Random, Secret, SlotKind, SlotSecret,
    judge, observer,
};
use onefold_testbed::Rng;
use parking_lot::Mutex;

use super::{heads::Memory, index_disk};
use crate::{
    archive::{
        params::Medium,
        run::{Flow, Sim, Stop},
    },
    checker::{Checker, Failure},
};

/// The file.
const KEYS: &str = "keys";

/// The secret that is never removed.
const OWNER: u8 = 1;

/// The id of the archives.
const ID: [u8; 16] = [7; 16];

/// Which secrets open the archive.
pub(crate) struct Sealed {
    rng: Rng,
    opens: BTreeSet<u8>,
    /// Those that were removed.
    removed: BTreeSet<u8>,
    /// A change of this secret was cut off.
    unsure: Option<u8>,
    /// Key areas from before secrets were removed.
    old: Vec<(u8, Vec<u8>)>,
    next: u8,
}

/// Chance that is the same in each process, as in clones of a machine.
struct Repeated(Mutex<Rng>);

impl Random for Repeated {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        self.0.lock().fill(into);
        Ok(())
    }
}

fn repeated() -> Arc<dyn Random> {
    Arc::new(Repeated(Mutex::new(Rng::new(11))))
}

/// Who knows a secret, and perhaps remembers heads.
struct Holder(u8, Option<Memory>);

impl Opener for Holder {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        let found = area.root(&secret(self.0), 0)?;
        found.map(|(_, root)| root).ok_or_else(|| Error::new(Kind::Denied, "no slot opens"))
    }

    fn head_seen(&self, _: &[u8; 16]) -> Option<Head> {
        self.1.as_ref()?.head()
    }

    fn saw_head(&self, _: &[u8; 16], head: &Head) {
        if let Some(memory) = &self.1 {
            memory.saw(head);
        }
    }

    fn random(&self) -> Arc<dyn Random> {
        repeated()
    }
}

fn secret(byte: u8) -> SlotSecret {
    SlotSecret::Key(Secret::take(&mut [byte; 32]))
}

fn add(keys: &mut Keys, byte: u8, random: &dyn Random) -> Result<()> {
    let made = keys.add_slot((SlotKind::File, ""), &secret(byte), Argon::LEAST, (0, 0), random);
    made.map(drop)
}

impl Sealed {
    pub(crate) fn new(seed: u64) -> Sealed {
        Sealed {
            rng: Rng::new(seed ^ 0x7365_616c_6564_2e2e),
            opens: BTreeSet::from([OWNER]),
            removed: BTreeSet::new(),
            unsure: None,
            old: Vec::new(),
            next: OWNER + 1,
        }
    }

    /// Makes the archive.
    pub(crate) fn create(files: &dyn Files, format: &Format) -> Result<()> {
        observer::begin();
        let random = repeated();
        let mut keys = Keys::create(format.id, &*random)?;
        add(&mut keys, OWNER, &*random)?;
        create_sealed(files, format, &mut keys, random)
    }

    /// Who is asked for the key, and what that client remembers.
    pub(crate) fn opener(memory: Option<Memory>) -> KeySource {
        KeySource::new(Arc::new(Holder(OWNER, memory)))
    }
}

impl Sim {
    /// The keys of a copy of the key area, opened by the secret that is never removed.
    pub(crate) fn opened_by_owner(copy: &[u8]) -> Option<Keys> {
        let root = &mut |area: &KeyArea| Holder(OWNER, None).root(area);
        judge([copy; 2], &ID, (0, true), root, Care::default()).ok().map(|judged| judged.keys)
    }

    pub(crate) fn read_keys(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 2 * AREA_BYTES];
        let n = self.files.open(KEYS)?.read_at(0, &mut bytes)?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn write_keys(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let file = self.files.open(KEYS)?;
        file.write_at(at as u64, bytes)?;
        file.sync()
    }

    /// Now and then a slot comes or goes.
    pub(crate) fn key_move(&mut self) -> Flow {
        let Some(sealed) = &mut self.sealed else { return Ok(()) };
        if !sealed.rng.percent(4) || sealed.unsure.is_some() {
            return Ok(());
        }
        let guests: Vec<u8> = sealed.opens.iter().copied().filter(|&byte| byte != OWNER).collect();
        let gone = sealed
            .rng
            .pick(&guests)
            .copied()
            .filter(|_| guests.len() > 2 || self.now.is_multiple_of(2));
        let byte = gone.unwrap_or(sealed.next);
        if gone.is_none() {
            sealed.next += 1;
        }
        sealed.unsure = Some(byte);
        let before = self.read_keys().unwrap_or_default();
        let archive = self.open(true)?;
        let changed = change_keys(&archive, |keys, random| {
            if gone.is_none() {
                return add(keys, byte, random);
            }
            // Slots do not tell whose they are: the one that this secret opens.
            let area = KeyArea::decode(&before[..AREA_BYTES])?;
            let found = area.root(&secret(byte), 0)?;
            found.map_or(Ok(()), |(number, _)| keys.remove_slot(number))
        });
        match changed {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::NoSpace && !self.files.is_down() => {
                // The frame that bears the number of the new keys found no room.
                return Ok(());
            }
            Err(error) => return Err(self.judge("keys", &error)),
        }
        let now = self.read_keys().unwrap_or_default();
        let Some(sealed) = &mut self.sealed else { return Ok(()) };
        sealed.unsure = None;
        if gone.is_some() {
            sealed.opens.remove(&byte);
            sealed.removed.insert(byte);
            sealed.old.push((byte, before));
            self.reach.hit("a slot was removed");
        } else {
            sealed.opens.insert(byte);
            self.reach.hit("a slot was added");
        }
        if now.len() == 2 * AREA_BYTES && now[..AREA_BYTES] != now[AREA_BYTES..] {
            let message = "a change of keys left two different copies";
            return Err(Failure::new(Checker::Secrecy, message).into());
        }
        Ok(())
    }

    /// True when a secret opens the archive.
    fn opens(&mut self, byte: u8, writes: bool) -> Result<bool, Stop> {
        let opener = KeySource::new(Arc::new(Holder(byte, None)));
        let settings = Settings { opener, ..self.settings() };
        match Archive::open(Arc::new(self.files.clone()), writes, settings) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), Kind::Denied | Kind::Corrupt) => {
                self.say(|| format!("open with secret {byte}: {error:?}"));
                Ok(false)
            }
            Err(error) => Err(self.judge("open", &error)),
        }
    }

    pub(super) fn breach(what: impl Into<String>) -> Stop {
        Failure::new(Checker::Secrecy, what.into()).into()
    }

    /// At rest: who opens the archive, and who does not although they change its keys.
    pub(crate) fn look_at_keys(&mut self) -> Flow {
        if self.sealed.is_none() || self.files.is_hurt() || self.damaged {
            return Ok(());
        }
        observer::seen().map_err(Sim::breach)?;
        self.look_for_canaries()?;
        self.settle_unsure()?;
        let Some(sealed) = &self.sealed else { return Ok(()) };
        let (opens, removed) = (sealed.opens.clone(), sealed.removed.clone());
        for byte in opens.iter().copied().filter(|byte| byte % 3 == 1) {
            if !self.opens(byte, false)? {
                return Err(Sim::breach(format!("secret {byte} opens no more")));
            }
        }
        if let Some(&byte) = removed.last()
            && self.opens(byte, false)?
        {
            return Err(Sim::breach(format!("secret {byte} was removed, and opens")));
        }
        self.attack_keys()
    }

    /// A change that was cut off is there or not.
    fn settle_unsure(&mut self) -> Flow {
        let Some(byte) = self.sealed.as_ref().and_then(|sealed| sealed.unsure) else {
            return Ok(());
        };
        // A writer completes what was begun.
        if !self.opens(OWNER, true)? {
            return Err(Sim::breach("the owner can't open after a change was cut off"));
        }
        let is_there = self.opens(byte, false)?;
        let Some(sealed) = &mut self.sealed else { return Ok(()) };
        if is_there {
            sealed.opens.insert(byte);
        } else {
            sealed.opens.remove(&byte);
        }
        sealed.unsure = None;
        Ok(())
    }

    /// Puts old and forged key areas in place of the true ones.
    fn attack_keys(&mut self) -> Flow {
        let Some(sealed) = &mut self.sealed else { return Ok(()) };
        let Some((byte, old)) = sealed.rng.pick(&sealed.old).cloned() else { return Ok(()) };
        if self.params.medium != Medium::Good {
            return Ok(());
        }
        let is_removed = sealed.removed.contains(&byte);
        let how = sealed.rng.below(3);
        let at = sealed.rng.below(2) as usize * AREA_BYTES;
        let good = self.read_keys().map_err(|error| self.judge("keys", &error))?;
        if !is_removed || good.len() != 2 * AREA_BYTES || old.len() != 2 * AREA_BYTES {
            return Ok(());
        }
        let judged = |sim: &mut Sim, done: Result<()>| done.map_err(|e| sim.judge("keys", &e));
        let (place, bytes) = match how {
            0 => (0, old),
            1 => (at, old[..AREA_BYTES].to_vec()),
            _ => (at, forged(&old[..AREA_BYTES])),
        };
        let written = self.write_keys(place, &bytes);
        judged(self, written)?;
        for writes in [false, true] {
            if self.opens(byte, writes)? {
                return Err(Sim::breach(format!(
                    "a removed secret opens by an old key area ({how})"
                )));
            }
        }
        if how == 2 {
            if self.opens(OWNER, true)? {
                return Err(Sim::breach("a forged key area was taken"));
            }
            let other = AREA_BYTES - at;
            let now = self.read_keys().map_err(|error| self.judge("keys", &error))?;
            if now[other..][..AREA_BYTES] != good[other..][..AREA_BYTES] {
                return Err(Sim::breach("a forged key area replaced the good one"));
            }
            self.reach.hit("a forged key area was refused");
        } else {
            self.reach.hit("an old key area was refused");
        }
        let written = self.write_keys(0, &good);
        judged(self, written)
    }

    /// No file shows what was stored.
    fn look_for_canaries(&mut self) -> Flow {
        let mut canaries: Vec<u64> = self
            .pool
            .iter()
            .filter_map(|piece| piece.get(300..308)?.try_into().ok().map(u64::from_ne_bytes))
            .filter(|&canary| canary != 0)
            .collect();
        canaries.sort_unstable();
        let mut names = self.files.names().map_err(|error| self.judge("names", &error))?;
        if let Some(disk) = &self.index_disk {
            let on_disk = disk.mount.names().unwrap_or_default();
            names.extend(on_disk.into_iter().map(|name| format!("{}/{name}", index_disk::NAME)));
            self.reach.hit("a sealed archive had a disk of its index");
        }
        for name in names {
            let Ok(file) = self.files.open(&name) else { continue };
            let mut bytes = vec![0; (file.bytes().unwrap_or(0) as usize).next_multiple_of(4096)];
            if file.read_at(0, &mut bytes).is_err() {
                continue;
            }
            let shows = bytes.windows(8).any(|part| {
                let found = part.try_into().map_or(0, u64::from_ne_bytes);
                canaries.binary_search(&found).is_ok()
            });
            if shows {
                return Err(Sim::breach(format!("{name} shows what was stored")));
            }
        }
        self.reach.hit("no file showed what was stored");
        Ok(())
    }
}

/// An old key area with a higher number, by somebody who has no key.
fn forged(old: &[u8]) -> Vec<u8> {
    let mut bytes = old.to_vec();
    bytes[32..40].copy_from_slice(&1_000_000u64.to_le_bytes());
    let mut seed = [0; 8];
    seed.copy_from_slice(&ID[..8]);
    let sum = checksum::fast(u64::from_le_bytes(seed), &bytes[..AREA_BYTES - 8]);
    bytes[AREA_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}
