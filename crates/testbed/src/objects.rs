//! The meaning of each operation of an [`ObjectStore`](onefold_core::ObjectStore), on objects in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use onefold_core::object::{
    Change, Guard, Held, Holder, ObjectName, Page, Pool, PoolKind, Read, ReadPart, ReadResult,
    Refusal, Seen, Version, Write,
};

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// The data.
    pub data: Vec<u8>,
    /// The keys.
    pub omap: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The attributes.
    pub xattrs: BTreeMap<&'static str, Vec<u8>>,
    /// The version.
    pub version: u64,
    /// The time of the last change.
    pub changed: Duration,
}

/// A lock and when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lock {
    holder: Holder,
    until: Option<Duration>,
}

/// Objects, locks and fences.
#[derive(Clone, Debug)]
pub struct Objects {
    chunks: PoolKind,
    objects: BTreeMap<ObjectName, Object>,
    locks: BTreeMap<(ObjectName, &'static str), Lock>,
    fenced: BTreeSet<String>,
    version: u64,
}

impl Objects {
    /// No objects, with a chunk pool of this kind.
    #[must_use]
    pub fn new(chunks: PoolKind) -> Objects {
        Objects {
            chunks,
            objects: BTreeMap::new(),
            locks: BTreeMap::new(),
            fenced: BTreeSet::new(),
            version: 0,
        }
    }

    /// The kind of a pool.
    #[must_use]
    pub fn kind(&self, pool: Pool) -> PoolKind {
        match pool {
            Pool::Metadata => PoolKind::Replicated,
            Pool::Chunks => self.chunks,
        }
    }

    /// All objects, in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = (&ObjectName, &Object)> {
        self.objects.iter()
    }

    /// One object.
    #[must_use]
    pub fn get(&self, name: &ObjectName) -> Option<&Object> {
        self.objects.get(name)
    }

    /// Loses an object, as a cluster does that lost too many disks.
    pub fn lose(&mut self, name: &ObjectName) {
        self.objects.remove(name);
    }

    /// Puts another content in the place of an object's, as a medium does that rots; locks and
    /// versions stay.
    pub fn put_back(&mut self, name: &ObjectName, object: Object) {
        self.objects.insert(name.clone(), object);
    }

    /// Bytes of data, keys and values.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of = |object: &Object| {
            object.data.len()
                + object.omap.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
        };
        self.objects.values().map(|object| of(object) as u64).sum()
    }

    /// What a pool holds.
    #[must_use]
    pub fn held(&self, pool: Pool) -> Held {
        let of_pool = self.objects.iter().filter(|(name, _)| name.pool == pool);
        of_pool.fold(Held::default(), |held, (_, object)| Held {
            objects: held.objects + 1,
            bytes: held.bytes + object.data.len() as u64,
        })
    }

    /// Applies `op`. The version increases by one and `gap`.
    ///
    /// # Errors
    /// As the trait says; nothing is changed then.
    pub fn write(&mut self, op: &Write, now: Duration, gap: u64) -> Result<Version, Refusal> {
        self.supported(op)?;
        check(self.objects.get(&op.object), &op.guards)?;
        self.version += 1 + gap;
        if op.changes.contains(&Change::Remove) {
            self.locks.retain(|(object, _), _| *object != op.object);
            return match self.objects.remove(&op.object) {
                Some(_) => Ok(Version(self.version)),
                None => Err(Refusal::Missing),
            };
        }
        let object = self.objects.entry(op.object.clone()).or_default();
        object.version = self.version;
        object.changed = now;
        op.changes.iter().for_each(|change| apply(object, change));
        Ok(Version(self.version))
    }

    /// Reads.
    ///
    /// # Errors
    /// As the trait says.
    pub fn read(&self, op: &Read) -> Result<ReadResult, Refusal> {
        let omap = |part: &ReadPart| matches!(part, ReadPart::Keys(_) | ReadPart::Page(..));
        if self.kind(op.object.pool) == PoolKind::Erasure && op.parts.iter().any(omap) {
            return Err(Refusal::Unsupported);
        }
        let object = self.objects.get(&op.object).ok_or(Refusal::Missing)?;
        Ok(ReadResult {
            version: Version(object.version),
            seen: op.parts.iter().map(|part| see(object, part)).collect(),
        })
    }

    fn supported(&self, op: &Write) -> Result<(), Refusal> {
        let omap = |change: &Change| {
            matches!(
                change,
                Change::SetOmap(_) | Change::DropOmap(_) | Change::Write(..) | Change::Zero(..)
            )
        };
        let erasure = self.kind(op.object.pool) == PoolKind::Erasure;
        if erasure
            && (op.changes.iter().any(omap)
                || op.guards.iter().any(|guard| matches!(guard, Guard::Omap(..))))
        {
            return Err(Refusal::Unsupported);
        }
        Ok(())
    }

    /// A page of names after `from`.
    #[must_use]
    pub fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Page {
        let after = match from {
            Some(from) => Bound::Excluded(ObjectName { pool, name: from.to_owned() }),
            None => Bound::Included(ObjectName { pool, name: String::new() }),
        };
        let mut names = self
            .objects
            .range((after, Bound::Unbounded))
            .map(|(name, _)| name)
            .take_while(|name| name.pool == pool);
        let page: Vec<String> =
            names.by_ref().take(most.max(1)).map(|name| name.name.clone()).collect();
        let next = names.next().and(page.last().cloned());
        Page { names: page, next }
    }

    /// Acquires or renews a lock.
    ///
    /// # Errors
    /// `Busy`.
    pub fn lock(
        &mut self,
        object: &ObjectName,
        lock: &'static str,
        holder: Holder,
        now: Duration,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        if self.holder(object, lock, now).is_some_and(|other| other != holder) {
            return Err(Refusal::Busy);
        }
        if !self.objects.contains_key(object) {
            self.version += 1;
            self.objects.insert(
                object.clone(),
                Object { version: self.version, changed: now, ..Object::default() },
            );
        }
        self.locks
            .insert((object.clone(), lock), Lock { holder, until: lease.map(|lease| now + lease) });
        Ok(())
    }

    /// The holder of a lock.
    #[must_use]
    pub fn holder(&self, object: &ObjectName, lock: &'static str, now: Duration) -> Option<Holder> {
        let lock = self.locks.get(&(object.clone(), lock))?;
        lock.until.is_none_or(|until| now < until).then(|| lock.holder.clone())
    }

    /// Breaks the lock of `holder`.
    pub fn break_lock(&mut self, object: &ObjectName, lock: &'static str, holder: &Holder) {
        let key = (object.clone(), lock);
        if self.locks.get(&key).is_some_and(|lock| lock.holder == *holder) {
            self.locks.remove(&key);
        }
    }

    /// Shuts a session out.
    pub fn fence(&mut self, identity: &str) {
        self.fenced.insert(identity.to_owned());
    }

    /// True when a session was shut out.
    #[must_use]
    pub fn is_fenced(&self, identity: &str) -> bool {
        self.fenced.contains(identity)
    }
}

fn check(object: Option<&Object>, guards: &[Guard]) -> Result<(), Refusal> {
    for guard in guards {
        let holds = match (guard, object) {
            (Guard::Absent, None) => true,
            (Guard::Absent, Some(_)) => return Err(Refusal::Exists),
            (_, None) => return Err(Refusal::Missing),
            (Guard::Exists, Some(_)) => true,
            (Guard::Version(version), Some(object)) => object.version == version.0,
            (Guard::Omap(key, value), Some(object)) => {
                object.omap.get(key).map_or(&[][..], |value| value) == *value
            }
            (Guard::Xattr(name, value), Some(object)) => {
                object.xattrs.get(name).map_or(&[][..], |value| value) == *value
            }
        };
        if !holds {
            return Err(Refusal::Mismatch);
        }
    }
    Ok(())
}

fn apply(object: &mut Object, change: &Change) {
    match change {
        Change::Write(at, bytes) => {
            let end = *at as usize + bytes.len();
            if object.data.len() < end {
                object.data.resize(end, 0);
            }
            object.data[*at as usize..end].copy_from_slice(bytes);
        }
        Change::Full(bytes) | Change::Overwrite(bytes) => object.data.clone_from(bytes),
        Change::Zero(at, bytes) => {
            let length = object.data.len();
            object.data[(*at as usize).min(length)..((at + bytes) as usize).min(length)].fill(0);
        }
        Change::SetOmap(pairs) => object.omap.extend(pairs.iter().cloned()),
        Change::DropOmap(keys) => keys.iter().for_each(|key| {
            object.omap.remove(key);
        }),
        Change::SetXattr(name, value) => {
            object.xattrs.insert(name, value.clone());
        }
        Change::Remove => unreachable!("removal is the only change of its operation"),
    }
}

fn see(object: &Object, part: &ReadPart) -> Seen {
    match part {
        ReadPart::Data(at, bytes) => {
            let length = object.data.len();
            Seen::Data(
                object.data
                    [(*at as usize).min(length)..(at.saturating_add(*bytes) as usize).min(length)]
                    .to_vec(),
            )
        }
        ReadPart::Keys(keys) => {
            let found: BTreeMap<_, _> =
                keys.iter().filter_map(|key| object.omap.get_key_value(key)).collect();
            Seen::Pairs {
                pairs: found.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
                more: false,
            }
        }
        ReadPart::Page(after, most) => {
            use std::ops::Bound::{Excluded, Unbounded};
            let mut keys = object.omap.range::<[u8], _>((
                if after.is_empty() { Unbounded } else { Excluded(&after[..]) },
                Unbounded,
            ));
            let pairs = keys
                .by_ref()
                .take(*most)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            Seen::Pairs { pairs, more: keys.next().is_some() }
        }
        ReadPart::Xattr(name) => Seen::Xattr(object.xattrs.get(name).cloned()),
        ReadPart::Stat => Seen::Stat { bytes: object.data.len() as u64, changed: object.changed },
    }
}
