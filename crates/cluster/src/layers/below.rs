//! The layers below a volume: what a volume reads where it has no object of its own.
//!
//! The header of a volume names its parent, and how many of the parent's objects count. The parent's
//! header may name another one. A parent has a smaller number than its child, so that a chain ends.
//!
//! A layer that goes hands its objects down first, and its children then get its own parent. So a
//! chain that was read may be out of date, and only a look at an object tells: what is missing in a
//! layer, or is being erased there, stands in the child by then.

use onefold_core::object::{Change, Guard, ReadPart, Refusal, Write};

use crate::{
    format::{ObjectId, corrupt, key},
    kernel::Kernel,
    volume::header::{self, Bits},
};

/// The parent of a volume.
pub(crate) const PARENT: &[u8] = b"p";

/// Volumes that name this one as their parent, or did, a key each.
pub(crate) const CHILD: u8 = b'k';

/// There while the volume goes: it gets no child any more.
pub(crate) const ERASING: &[u8] = b"x";

/// There once the parent and the table of snapshots are set: a late copy of that operation does nothing.
pub(crate) const BORN: &[u8] = b"b";

/// Bytes of the value of a parent.
const PARENT_BYTES: usize = 16;

/// Most layers below a volume.
pub(crate) const LAYERS_MAX: usize = 1024;

/// Readings of a chain; each after the first follows a layer that went meanwhile.
const READINGS: u32 = 100;

/// Most children of a layer.
const CHILDREN_MAX: usize = 1024;

/// What a volume inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    /// The number of the parent.
    pub(crate) id: u64,
    /// Objects from this one on are not inherited.
    pub(crate) objects: u64,
}

impl Parent {
    pub(crate) fn encode(self) -> Vec<u8> {
        [self.id.to_le_bytes(), self.objects.to_le_bytes()].concat()
    }

    fn decode(volume: u64, value: &[u8]) -> Result<Parent, Refusal> {
        let bad =
            || Refusal::Failed(corrupt(format_args!("the parent of volume {volume:x} is damaged")));
        if value.len() != PARENT_BYTES {
            return Err(bad());
        }
        let number = |at: usize| value[at..at + 8].try_into().map(u64::from_le_bytes);
        let parent =
            Parent { id: number(0).map_err(|_| bad())?, objects: number(8).map_err(|_| bad())? };
        (parent.id < volume).then_some(parent).ok_or_else(bad)
    }

    /// The parent of a volume, if it has one. `Missing` without a header.
    pub(crate) fn read(kernel: &Kernel, volume: u64) -> Result<Option<Parent>, Refusal> {
        let value = kernel.read_value(&header::name(volume), PARENT)?;
        if value.is_empty() { Ok(None) } else { Parent::decode(volume, &value).map(Some) }
    }
}

/// Records in a layer that a volume may read it. `Mismatch` when the layer goes.
pub(crate) fn link(kernel: &Kernel, layer: u64, child: u64) -> Result<(), Refusal> {
    if children(kernel, layer)?.len() >= CHILDREN_MAX {
        let what = format!("{CHILDREN_MAX} volumes share one snapshot, and no more may");
        return Err(Refusal::Failed(onefold_core::Error::new(
            onefold_core::Kind::Unsupported,
            what,
        )));
    }
    let op = Write {
        object: header::name(layer),
        guards: vec![Guard::Exists, Guard::Omap(ERASING.to_vec(), Vec::new())],
        changes: vec![Change::SetOmap(vec![(
            key::numbered(CHILD, child),
            child.to_le_bytes().to_vec(),
        )])],
    };
    match kernel.until_answered(&op) {
        Ok(_) => Ok(()),
        Err(Refusal::Missing) => Err(Refusal::Mismatch),
        Err(refusal) => Err(refusal),
    }
}

/// The volumes that may read a layer.
pub(crate) fn children(kernel: &Kernel, layer: u64) -> Result<Vec<u64>, Refusal> {
    let (mut after, mut all) = (vec![CHILD], Vec::new());
    loop {
        let part = ReadPart::Page(after, CHILDREN_MAX);
        let answer = match kernel.read_one(&header::name(layer), vec![part]) {
            Err(Refusal::Missing) => return Ok(all),
            other => other?,
        };
        let (pairs, more) = answer.pairs(0);
        all.extend(pairs.iter().map_while(|(key, _)| key::parse_numbered(CHILD, key)));
        let ours = pairs.last().filter(|(key, _)| key.first() == Some(&CHILD));
        match ours {
            Some((last, _)) if more => after = last.clone(),
            _ => return Ok(all),
        }
    }
}

/// One layer below a volume.
struct Layer {
    parent: Parent,
    bits: Bits,
}

/// The layers below a volume, the nearest first.
#[derive(Default)]
pub(crate) struct Below(Vec<Layer>);

impl Below {
    /// The layers below a volume as its header says.
    pub(crate) fn read(kernel: &Kernel, volume: u64) -> Result<Below, Refusal> {
        for _ in 0..READINGS {
            if let Some(below) = Below::look(kernel, volume)? {
                return Ok(below);
            }
        }
        Err(Refusal::Busy)
    }

    /// The same by one look; `None` when it changed meanwhile. A layer loses bits only after its
    /// children have another parent, so that the parents are read again after the bits.
    fn look(kernel: &Kernel, volume: u64) -> Result<Option<Below>, Refusal> {
        let (mut layers, mut at, mut objects) = (Vec::<Layer>::new(), volume, u64::MAX);
        let parent_of = |at: u64| match Parent::read(kernel, at) {
            Err(Refusal::Missing) if at == volume => Ok(Some(None)),
            Err(Refusal::Missing) => Ok(None),
            other => other.map(Some),
        };
        loop {
            let Some(parent) = parent_of(at)? else { return Ok(None) };
            let Some(parent) = parent else { break };
            if layers.len() == LAYERS_MAX {
                let what = format_args!("volume {volume:x} has too many layers below");
                return Err(Refusal::Failed(corrupt(what)));
            }
            objects = objects.min(parent.objects);
            let bits = Bits::read(kernel, parent.id)?;
            at = parent.id;
            layers.push(Layer { parent: Parent { objects, ..parent }, bits });
        }
        let mut at = volume;
        for layer in &layers {
            if parent_of(at)?.flatten().is_none_or(|parent| parent.id != layer.parent.id) {
                return Ok(None);
            }
            at = layer.parent.id;
        }
        Ok(Some(Below(layers)))
    }

    /// How many layers there are.
    pub(crate) fn layers(&self) -> usize {
        self.0.len()
    }

    /// Where an object of the volume comes from, the nearest layer first. An object of a layer whose
    /// copy is under way counts for nothing, and the next one does.
    pub(crate) fn sources(&self, index: u64) -> impl Iterator<Item = ObjectId> + '_ {
        self.0
            .iter()
            .filter(move |layer| index < layer.parent.objects && layer.bits.has(index))
            .map(move |layer| ObjectId { volume: layer.parent.id, index })
    }

    /// True when a layer has an object of this index.
    pub(crate) fn has(&self, index: u64) -> bool {
        self.sources(index).next().is_some()
    }

    /// The first object of a range that a layer has.
    pub(crate) fn first(&self, range: std::ops::Range<u64>) -> Option<u64> {
        let first = |layer: &Layer| {
            let end = range.end.min(layer.parent.objects);
            (range.start < end).then(|| layer.bits.first(range.start..end)).flatten()
        };
        self.0.iter().filter_map(first).min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onefold_core::object::{ObjectStore, PoolKind};
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{Format, Session, Settings, create};

    #[test]
    fn rule_09_a_parent_that_would_make_a_ring_is_damage() {
        let parent = Parent { id: 4, objects: 7 };
        assert_eq!(Parent::decode(5, &parent.encode()).unwrap(), parent);
        assert!(Parent::decode(4, &parent.encode()).is_err());
        assert!(Parent::decode(3, &parent.encode()).is_err());
        assert!(Parent::decode(5, &parent.encode()[1..]).is_err());
        assert!(Parent::decode(5, &[parent.encode(), vec![0]].concat()).is_err());
    }

    #[test]
    fn rule_09_a_chain_of_too_many_layers_is_damage() {
        let store = Arc::new(MemoryObjects::new(PoolKind::Replicated));
        create(&*store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let session = Session::open(store.clone(), Settings::default()).unwrap();
        let last = LAYERS_MAX as u64 + 1;
        for id in 1..=last {
            let parent = Parent { id: id - 1, objects: 1 };
            let op = Write {
                object: header::name(id),
                guards: Vec::new(),
                changes: vec![Change::SetOmap(vec![(PARENT.to_vec(), parent.encode())])],
            };
            store.write(&[op]).remove(0).unwrap();
        }
        store
            .write(&[Write {
                object: header::name(0),
                guards: Vec::new(),
                changes: vec![Change::SetOmap(vec![(b"o".to_vec(), vec![1])])],
            }])
            .remove(0)
            .unwrap();
        let below = Below::read(session.kernel(), last - 1).unwrap();
        assert_eq!(below.layers(), LAYERS_MAX);
        assert!(Below::read(session.kernel(), last).is_err());
    }
}
