//! The catalogue: the object that says what the store is, and gives sessions, volumes and put
//! objects their numbers; and opening a store by it.

use std::sync::{Arc, atomic::AtomicU64};

use onefold_core::{
    Error, Kind, Result,
    object::{
        Change, Guard, ObjectName, ObjectStore, Pool, PoolKind, Read, ReadPart, Refusal, Write,
    },
};
use onefold_seal::{Keys, Random};

use super::{
    Counts, Kernel,
    operation::{Fate, Operation},
};
use crate::{
    format::{
        Stamp,
        catalogue::{CATALOGUE, FORMAT, Format},
        corrupt,
    },
    replies::{failed, read_format},
    sealing::{self, Sealing, hashing::Hashing, keys::Access, store::SealedStore},
    settings::Settings,
};

/// The number of the next session.
const SESSIONS: &[u8] = b"sessions";

/// The number of the next volume or object that is put.
const IDS: &[u8] = b"ids";

/// Sessions that a store can have: 24 bits.
const SESSIONS_MAX: u64 = 1 << (64 - Stamp::COUNTER_BITS);

/// Volumes and put objects that a store can have in its time: 40 bits.
const IDS_MAX: u64 = 1 << 40;

/// Decisions about one number until it is an error.
const DECISIONS: u32 = 1000;

/// Makes a store.
///
/// # Errors
/// `Exists` when there is one already, `Unsupported` when a pool can't hold it, and the object
/// store's.
pub fn create(store: &dyn ObjectStore, format: &Format) -> Result<()> {
    made(store, format, None)
}

/// Makes a store that is sealed at rest, with these keys, which have a slot. Its secret is zero.
///
/// # Errors
/// The errors of [`create`] and of the source of chance.
pub fn create_sealed(
    store: &dyn ObjectStore,
    format: &Format,
    keys: &mut Keys,
    random: &dyn Random,
) -> Result<()> {
    let format = Format { secret: [0; 32], sealed: true, ..format.clone() };
    if is_made(store)? {
        return Err(Error::new(Kind::Exists, "there is a store already"));
    }
    let (sealing, bears) = sealing::keys::create(store, &format.id, keys, random)?;
    made(store, &format, Some((&sealing, bears)))
}

/// Makes the catalogue.
fn made(
    store: &dyn ObjectStore,
    format: &Format,
    sealed: Option<(&Sealing, (Vec<u8>, Vec<u8>))>,
) -> Result<()> {
    format.check()?;
    if store.kind(Pool::Metadata) != PoolKind::Replicated {
        return Err(Error::new(
            Kind::Unsupported,
            "the metadata pool is erasure-coded, and has no omap; it must be replicated",
        ));
    }
    let first = |key: &[u8]| (key.to_vec(), 1u64.to_le_bytes().to_vec());
    let pairs = vec![(FORMAT.to_vec(), format.encode()), first(SESSIONS), first(IDS)];
    let mut op = Write {
        object: ObjectName::metadata(CATALOGUE),
        guards: vec![Guard::Absent],
        changes: vec![Change::SetOmap(pairs)],
    };
    if let Some((sealing, bears)) = sealed {
        op = sealing.seal_write(&op)?;
        op.changes.push(Change::SetOmap(vec![bears]));
    }
    match store.write(&[op]).remove(0) {
        Ok(_) => Ok(()),
        Err(Refusal::Exists) => Err(Error::new(Kind::Exists, "there is a store already")),
        Err(refusal) => Err(failed("the store can't be made", refusal)),
    }
}

/// True when somebody made a store here.
///
/// # Errors
/// The object store's.
pub fn is_made(store: &dyn ObjectStore) -> Result<bool> {
    match store
        .read(&[Read { object: ObjectName::metadata(CATALOGUE), parts: vec![ReadPart::Stat] }])
        .remove(0)
    {
        Ok(_) => Ok(true),
        Err(Refusal::Missing) => Ok(false),
        Err(refusal) => Err(failed("the store can't be made", refusal)),
    }
}

/// A number of the catalogue that somebody takes.
struct TakenNumber<'a> {
    kernel: &'a Kernel,
    key: &'static [u8],
    number: u64,
}

impl Operation<(u64, Vec<u8>)> for TakenNumber<'_> {
    fn decisions(&self) -> u32 {
        DECISIONS
    }

    fn look(&mut self) -> Result<(u64, Vec<u8>), Refusal> {
        self.kernel.look_next(self.key)
    }

    fn decide(&mut self, (number, value): &(u64, Vec<u8>)) -> Result<Option<Write>, Refusal> {
        self.number = *number;
        let next = (number + 1).to_le_bytes().to_vec();
        Ok(Some(Write {
            object: ObjectName::metadata(CATALOGUE),
            guards: vec![Guard::Omap(self.key.to_vec(), value.clone())],
            changes: vec![Change::SetOmap(vec![(self.key.to_vec(), next)])],
        }))
    }

    /// A number whose reply is lost is skipped: nobody knows who took it.
    fn resolve(&self, _: &(u64, Vec<u8>)) -> Fate {
        Fate::Overtaken
    }

    /// Without the catalogue nothing is left to decide from.
    fn looks_after(&self, refusal: &Refusal) -> bool {
        matches!(refusal, Refusal::Mismatch)
    }
}

impl Kernel {
    /// Opens the store with a number of its own.
    pub(crate) fn open(store: Arc<dyn ObjectStore>, settings: Settings) -> Result<Kernel> {
        let mut kernel = Kernel::begin(store, settings, Access::Writes)?;
        kernel.number = kernel.take_number(SESSIONS)?;
        if kernel.number >= SESSIONS_MAX {
            let what = "the store had all the sessions that can write to it; it can be read: copy what it holds into a new one";
            return Err(Error::new(Kind::Unsupported, what));
        }
        Ok(kernel)
    }

    /// Opens the store only to read it, without a number.
    pub(crate) fn look(store: Arc<dyn ObjectStore>, settings: Settings) -> Result<Kernel> {
        Kernel::begin(store, settings, Access::Reads)
    }

    fn begin(store: Arc<dyn ObjectStore>, settings: Settings, access: Access) -> Result<Kernel> {
        let format = read_format(&*store, settings.tries)?;
        if format.chunks != store.kind(Pool::Chunks) {
            return Err(Error::new(
                Kind::InvalidInput,
                "the chunk pool is not the one that the store was made with: it is of another kind",
            ));
        }
        let sealing = sealing::keys::unlock(&*store, &format, &settings, access)?;
        let store: Arc<dyn ObjectStore> = match &sealing {
            Some(sealing) => Arc::new(SealedStore::new(store, sealing.clone())),
            None => store,
        };
        let kernel = Kernel {
            store,
            hashing: Hashing::new(&format, sealing),
            format,
            settings,
            counts: Counts::default(),
            number: 0,
            counter: AtomicU64::new(1),
        };
        if kernel.is_sealed() {
            // Now it is proven.
            let proven = kernel.read_value(&ObjectName::metadata(CATALOGUE), FORMAT);
            let proven = proven.map_err(|why| failed("the catalogue can't be read", why))?;
            let proven = Format::decode(&proven)?;
            // Renames and snapshots may have begun meanwhile; nothing else of it ever changes.
            let Format { renames, layers, stamped_parents, received, .. } = kernel.format;
            if (Format { renames, layers, stamped_parents, received, ..proven }) != kernel.format {
                return Err(corrupt("the catalogue of the store is damaged"));
            }
        }
        Ok(kernel)
    }

    /// A number that nobody else gets.
    pub(crate) fn new_id(&self) -> Result<u64> {
        match self.take_number(IDS)? {
            id if id < IDS_MAX => Ok(id),
            _ => Err(Error::new(
                Kind::Unsupported,
                "the store had all the volumes and objects that it can have: make a new one",
            )),
        }
    }

    /// Records in the format that names are changed. An older version then refuses the store.
    pub(crate) fn record_renames(&self) -> Result<(), Refusal> {
        if self.format.renames {
            return Ok(());
        }
        self.record_feature(|format| std::mem::replace(&mut format.renames, true))
    }

    /// Records a feature in the format, unless it is there: `set` sets it, and returns whether it was.
    /// An older version then refuses the store.
    pub(crate) fn record_feature(&self, set: impl Fn(&mut Format) -> bool) -> Result<(), Refusal> {
        let catalogue = ObjectName::metadata(CATALOGUE);
        for _ in 0..DECISIONS {
            let value = self.read_value(&catalogue, FORMAT)?;
            let mut format = Format::decode(&value).map_err(Refusal::Failed)?;
            if set(&mut format) {
                return Ok(());
            }
            match self.until_answered(&Write {
                object: catalogue.clone(),
                guards: vec![Guard::Omap(FORMAT.to_vec(), value)],
                changes: vec![Change::SetOmap(vec![(FORMAT.to_vec(), format.encode())])],
            }) {
                // The next look finds the record.
                Ok(_) | Err(Refusal::Mismatch) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Busy)
    }

    /// The number that somebody gets next; everything that is there has a smaller one.
    pub(crate) fn next_id(&self) -> Result<u64> {
        self.look_next(IDS)
            .map(|(number, _)| number)
            .map_err(|refusal| failed("the catalogue can't be read", refusal))
    }

    fn take_number(&self, key: &'static [u8]) -> Result<u64> {
        let mut taken = TakenNumber { kernel: self, key, number: 0 };
        self.carry_out(&mut taken)
            .map(|_| taken.number)
            .map_err(|refusal| failed("the catalogue can't be changed", refusal))
    }

    /// A number of the catalogue, and its value.
    fn look_next(&self, key: &[u8]) -> Result<(u64, Vec<u8>), Refusal> {
        let value = self.read_value(&ObjectName::metadata(CATALOGUE), key)?;
        let number = value
            .as_slice()
            .try_into()
            .map_err(|_| Refusal::Failed(corrupt("the catalogue is damaged")))?;
        Ok((u64::from_le_bytes(number), value))
    }
}

#[cfg(test)]
mod tests {
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::Session;

    fn set(store: &MemoryObjects, key: &[u8], number: u64) {
        let changes = vec![Change::SetOmap(vec![(key.to_vec(), number.to_le_bytes().to_vec())])];
        let op = Write { object: ObjectName::metadata(CATALOGUE), guards: Vec::new(), changes };
        store.write(&[op]).remove(0).unwrap();
    }

    #[test]
    fn rule_00_who_only_looks_takes_no_number_and_looks_when_there_is_none_left() {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let look = || Session::look(Arc::new(store.session("who")), Settings::default()).unwrap();
        let before = look().kernel().look_next(SESSIONS).unwrap();
        assert_eq!(look().kernel().look_next(SESSIONS).unwrap(), before);
        set(&store, SESSIONS, SESSIONS_MAX);
        let refused = Session::open(Arc::new(store.session("who")), Settings::default())
            .map(|_| ())
            .unwrap_err();
        assert!(
            refused.kind() == Kind::Unsupported
                && refused.to_string().contains("copy what it holds"),
            "{refused}"
        );
        assert!(look().status().unwrap().volumes == 0 && look().names().unwrap().is_empty());
        set(&store, SESSIONS, 7);
        set(&store, IDS, IDS_MAX);
        let session = Session::open(Arc::new(store.session("who")), Settings::default()).unwrap();
        assert_eq!(session.create_volume("v", 4096).unwrap_err().kind(), Kind::Unsupported);
    }
}
