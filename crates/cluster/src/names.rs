//! Names: of volumes and of objects that were put, and the records of what is being made or
//! deleted.
//!
//! A name's shard also holds a record, by number, of everything that is there without a name: what
//! is being filled and what is being deleted. A name and its record change in one operation, so
//! that nothing is ever without both.

use onefold_core::{
    Error, Kind, Result, checksum,
    object::{Change, Guard, ObjectName, ReadPart, Refusal, Write},
};

use crate::{
    format::{
        catalogue::{Named, VOLUME_MAX, What},
        corrupt, key,
    },
    session::{Session, failed},
    settings::PlantedBug,
    volume::header,
};

const NAME: u8 = b'n';
const RECORD: u8 = b'x';

/// How many records a shard ever had.
const COUNT: &[u8] = b"c";

/// The lock of who fills or deletes something that has no name.
pub(crate) const FILL: &str = "fill";

/// Most bytes of a name.
const NAME_MAX: usize = 255;

/// Checks the size that a volume gets.
pub(crate) fn valid_size(bytes: u64) -> Result<()> {
    if !bytes.is_multiple_of(4096) || bytes == 0 || bytes > VOLUME_MAX {
        return Err(Error::new(
            Kind::InvalidInput,
            "the size of a volume is a multiple of 4096, and 128 TiB at most",
        ));
    }
    Ok(())
}

/// Something that is being filled or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) named: Named,
    /// The session that fills it; empty while it is being deleted.
    pub(crate) filler: String,
}

impl Record {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [self.named.encode(), self.filler.as_bytes().to_vec()].concat()
    }

    fn decode(value: &[u8]) -> Result<Record> {
        let named = Named::decode(value)?;
        Ok(Record { named, filler: String::from_utf8_lossy(&value[25..]).into_owned() })
    }
}

fn name_key(name: &str) -> Vec<u8> {
    [&[NAME], name.as_bytes()].concat()
}

fn valid(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("a name has 1 to {NAME_MAX} bytes and no control characters"),
        ));
    }
    Ok(())
}

impl Session {
    pub(crate) fn names_of(&self, name: &str) -> ObjectName {
        let shard = checksum::fast(5, name.as_bytes()) % u64::from(self.format.shards);
        ObjectName::metadata(format!("n.{shard:02x}"))
    }

    /// The shards of the names.
    fn name_shards(&self) -> Vec<ObjectName> {
        (0..self.format.shards)
            .map(|shard| ObjectName::metadata(format!("n.{shard:02x}")))
            .collect()
    }

    /// What a name stands for.
    ///
    /// # Errors
    /// The store's.
    pub fn find(&self, name: &str) -> Result<Option<Named>> {
        let value = self
            .name_value(name)
            .map_err(|refusal| failed(format_args!("name {name:?} can't be looked up"), refusal))?;
        value.map(|value| Named::decode(&value)).transpose()
    }

    fn name_value(&self, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
        match self.read_one(&self.names_of(name), vec![ReadPart::Keys(vec![name_key(name)])]) {
            Ok(answer) => Ok(answer.pairs(0).0.first().map(|(_, value)| value.clone())),
            Err(Refusal::Missing) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// All names with what they stand for, sorted.
    ///
    /// # Errors
    /// The store's.
    pub fn names(&self) -> Result<Vec<(String, Named)>> {
        let mut all = Vec::new();
        let shards = self
            .all_keys_of(&self.name_shards(), &[])
            .map_err(|refusal| failed("the names can't be read", refusal))?;
        for (key, value) in shards.into_iter().flatten() {
            if let Some(name) = key.strip_prefix(&[NAME]) {
                all.push((String::from_utf8_lossy(name).into_owned(), Named::decode(&value)?));
            }
        }
        all.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(all)
    }

    /// All records, with their shards.
    pub(crate) fn records(&self) -> Result<Vec<(ObjectName, Record)>> {
        let shards = self.name_shards();
        let keys = self
            .all_keys_of(&shards, &[RECORD])
            .map_err(|refusal| failed("the names can't be read", refusal))?;
        let mut all = Vec::new();
        for (shard, keys) in shards.into_iter().zip(keys) {
            for (key, value) in keys.into_iter().filter(|(key, _)| key.first() == Some(&RECORD)) {
                let record = Record::decode(&value)?;
                // What is found under another number would never be forgotten.
                if key != key::numbered(RECORD, record.named.id) {
                    return Err(corrupt("a record in the catalogue stands under another number"));
                }
                all.push((shard.clone(), record));
            }
        }
        Ok(all)
    }

    /// Notes that something without a name is being filled by us.
    pub(crate) fn begin(&self, name: &str, what: What) -> Result<Record> {
        valid(name)?;
        let named = Named { what, id: self.new_id()?, bytes: 0, pieces: 0 };
        let record = Record { named, filler: self.store.identity() };
        // Nobody else takes it for abandoned while we hold this.
        let cookie = format!("session {}", self.number());
        let begun = || -> Result<(), Refusal> {
            for _ in 0..self.settings.tries.max(1) {
                match self.store.lock(
                    &header::name(named.id),
                    FILL,
                    &cookie,
                    Some(self.settings.lease),
                ) {
                    Err(Refusal::Unknown) => {}
                    other => {
                        other?;
                        break;
                    }
                }
            }
            self.add_record(&self.names_of(name), &record)
        };
        begun().map_err(|refusal| failed(format_args!("{name:?} can't be made"), refusal))?;
        Ok(record)
    }

    /// Adds a record. It is compared with how many there were: a copy of the operation that comes
    /// late must not bring it back.
    fn add_record(&self, shard: &ObjectName, record: &Record) -> Result<(), Refusal> {
        let key = key::numbered(RECORD, record.named.id);
        let counter = || ReadPart::Keys(vec![COUNT.to_vec(), key.clone()]);
        for _ in 0..1000 {
            let answer = match self.read_one(shard, vec![counter()]) {
                Ok(answer) => Some(answer),
                Err(Refusal::Missing) => None,
                Err(refusal) => return Err(refusal),
            };
            let pairs = answer.as_ref().map(|answer| answer.pairs(0).0).unwrap_or_default();
            if pairs.iter().any(|(found, _)| *found == key) {
                return Ok(());
            }
            let count = pairs.first().map(|(_, value)| value.clone()).unwrap_or_default();
            let next = count.as_slice().try_into().map_or(1, |bytes| u64::from_le_bytes(bytes) + 1);
            let guards = match answer {
                Some(_) => vec![Guard::Exists, Guard::Omap(COUNT.to_vec(), count)],
                None => vec![Guard::Absent],
            };
            let pairs =
                vec![(key.clone(), record.encode()), (COUNT.to_vec(), next.to_le_bytes().to_vec())];
            match self.write_one(&Write {
                object: shard.clone(),
                guards,
                changes: vec![Change::SetOmap(pairs)],
            }) {
                Ok(_) => return Ok(()),
                Err(Refusal::Mismatch | Refusal::Exists | Refusal::Missing | Refusal::Unknown) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Unknown)
    }

    /// Keeps the right to fill something.
    pub(crate) fn still_filling(&self, id: u64) -> Result<(), Refusal> {
        let cookie = format!("session {}", self.number());
        self.store.lock(&header::name(id), FILL, &cookie, Some(self.settings.lease))
    }

    /// Gives what was filled its name, in place of what the name stood for as `old`, which is
    /// deleted from now on.
    ///
    /// # Errors
    /// `Mismatch` when the name stands for something else.
    pub(crate) fn rename(
        &self,
        name: &str,
        old: Option<&Named>,
        new: Option<&Named>,
    ) -> Result<(), Refusal> {
        let key = name_key(name);
        let mut changes = Vec::new();
        match new {
            Some(new) => {
                changes.push(Change::SetOmap(vec![(key.clone(), new.encode())]));
                if old.is_none_or(|old| old.id != new.id) {
                    changes.push(Change::DropOmap(vec![key::numbered(RECORD, new.id)]));
                }
            }
            None => changes.push(Change::DropOmap(vec![key.clone()])),
        }
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.id != old.id)) {
            let record = Record { named: *old, filler: String::new() };
            changes.push(Change::SetOmap(vec![(key::numbered(RECORD, old.id), record.encode())]));
        }
        let mut guards = vec![Guard::Exists];
        if !self.planted(PlantedBug::NameNotCompared) {
            guards.push(Guard::Omap(key, old.map_or_else(Vec::new, Named::encode)));
        }
        if let Some(new) = new.filter(|new| old.is_none_or(|old| old.id != new.id)) {
            // Whoever took it for abandoned has deleted the record, or made it theirs.
            let record = Record {
                named: Named { bytes: 0, pieces: 0, ..*new },
                filler: self.store.identity(),
            };
            guards.push(Guard::Omap(key::numbered(RECORD, new.id), record.encode()));
        }
        let op = Write { object: self.names_of(name), guards, changes };
        for _ in 0..self.settings.tries.max(1) {
            let result = self.write_one(&op);
            match result {
                Ok(_) => return Ok(()),
                Err(Refusal::Unknown | Refusal::Mismatch) => {}
                Err(refusal) => return Err(refusal),
            }
            let now = self.name_value(name)?;
            let wanted = new.map(Named::encode);
            if now == wanted && (wanted.is_some() || self.has_record(name, old)?) {
                return Ok(());
            }
            if matches!(result, Err(Refusal::Mismatch)) {
                return Err(Refusal::Mismatch);
            }
        }
        Err(Refusal::Unknown)
    }

    fn has_record(&self, name: &str, old: Option<&Named>) -> Result<bool, Refusal> {
        let Some(old) = old else { return Ok(true) };
        let answer = self.read_one(
            &self.names_of(name),
            vec![ReadPart::Keys(vec![key::numbered(RECORD, old.id)])],
        )?;
        Ok(!answer.pairs(0).0.is_empty())
    }

    /// What is filled by a session that is gone is deleted from now on.
    pub(crate) fn abandon(&self, shard: &ObjectName, record: &Record) -> Result<(), Refusal> {
        let key = key::numbered(RECORD, record.named.id);
        let deleted = Record { filler: String::new(), ..record.clone() };
        let guards = vec![Guard::Exists, Guard::Omap(key.clone(), record.encode())];
        match self.until_answered(&Write {
            object: shard.clone(),
            guards,
            changes: vec![Change::SetOmap(vec![(key, deleted.encode())])],
        }) {
            Ok(_) | Err(Refusal::Mismatch) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Nothing is left of it.
    pub(crate) fn forget(&self, shard: &ObjectName, id: u64) -> Result<(), Refusal> {
        let op = Write {
            object: shard.clone(),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(vec![key::numbered(RECORD, id)])],
        };
        self.until_answered(&op).map(|_| ())
    }

    /// Makes an empty volume.
    ///
    /// # Errors
    /// `Exists` when the name is taken, `InvalidInput`, `NoSpace`.
    pub fn create_volume(&self, name: &str, bytes: u64) -> Result<()> {
        valid_size(bytes)?;
        valid(name)?;
        let taken = || Error::new(Kind::Exists, format!("{name:?} is there already"));
        if self.find(name)?.is_some() {
            return Err(taken());
        }
        let record = self.begin(name, What::Volume)?;
        let named = Named { bytes, ..record.named };
        match self.rename(name, None, Some(&named)) {
            Ok(()) => {
                self.unlock_filled(named.id);
                Ok(())
            }
            Err(Refusal::Mismatch) => Err(taken()),
            Err(refusal) => Err(failed(format_args!("volume {name:?} can't be made"), refusal)),
        }
    }

    pub(crate) fn unlock_filled(&self, id: u64) {
        // The lock ends by itself.
        let _ = self.store.unlock(&header::name(id), FILL, &format!("session {}", self.number()));
    }

    /// Takes a name away; what it stood for is deleted step by step, here or by any worker.
    ///
    /// # Errors
    /// `NotFound`, and `Busy` when it changed meanwhile.
    pub fn delete(&self, name: &str, what: What) -> Result<()> {
        let kind = if what == What::Volume { "volume" } else { "object" };
        let Some(old) = self.find(name)?.filter(|named| named.what == what) else {
            return Err(Error::new(Kind::NotFound, format!("there is no {kind} {name:?}")));
        };
        self.rename(name, Some(&old), None)
            .map_err(|refusal| failed(format_args!("{kind} {name:?} can't be deleted"), refusal))
    }
}
