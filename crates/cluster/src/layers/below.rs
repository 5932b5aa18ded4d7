//! The layers below a volume: what a volume reads where it has no object of its own.
//!
//! The header of a volume names its parent, and how many of the parent's objects count. The parent's
//! header may name another one. A parent has a smaller number than its child, so that a chain ends.
//!
//! A layer that goes hands its objects down first, and its children then get its own parent. So a
//! chain that was read may be out of date, and only a look at an object tells: what is missing in a
//! layer, or is being erased there, stands in the child by then.
//!
//! *Invariant:* no value of a parent comes a second time, since each has a stamp. An operation that
//! changes a parent compares the value before, and so does nothing once that was rewritten.

use onefold_core::object::{Change, Guard, ReadPart, Refusal, Write};

use crate::{
    chunk_map::stamp_value,
    format::{ObjectId, Stamp, corrupt, key},
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

/// Bytes of the value of a parent, and of one without a stamp, as older versions wrote it.
const PARENT_BYTES: usize = 24;
const WITHOUT_STAMP: usize = 16;

/// Most layers below a volume.
pub(crate) const LAYERS_MAX: usize = 1024;

/// Readings of a chain; each after the first follows a layer that went meanwhile.
const READINGS: u32 = 100;

/// Most children of a layer that gets another one by a clone, a snapshot or a rollback.
const CHILDREN_MAX: usize = 1024;

/// What a volume inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    /// The number of the parent.
    pub(crate) id: u64,
    /// Objects from this one on are not inherited.
    pub(crate) objects: u64,
    /// The stamp of this value; zero in one that an older version wrote.
    pub(crate) stamp: Stamp,
}

impl Parent {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut value = [self.id.to_le_bytes(), self.objects.to_le_bytes()].concat();
        if self.stamp != Stamp(0) {
            value.extend(stamp_value(self.stamp));
        }
        value
    }

    /// The same parent, as a value that never was.
    pub(crate) fn stamped(self, kernel: &Kernel) -> Parent {
        Parent { stamp: kernel.stamp(), ..self }
    }

    pub(super) fn decode(volume: u64, value: &[u8]) -> Result<Parent, Refusal> {
        let bad =
            || Refusal::Failed(corrupt(format_args!("the parent of volume {volume:x} is damaged")));
        let number = |at: usize| {
            let bytes = value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).ok_or_else(bad)
        };
        let stamp = match value.len() {
            WITHOUT_STAMP => 0,
            PARENT_BYTES => {
                Some(number(WITHOUT_STAMP)?).filter(|stamp| *stamp > 0).ok_or_else(bad)?
            }
            _ => return Err(bad()),
        };
        let parent = Parent { id: number(0)?, objects: number(8)?, stamp: Stamp(stamp) };
        (parent.id < volume).then_some(parent).ok_or_else(bad)
    }

    /// The parent of a volume, if it has one. `Missing` without a header.
    pub(crate) fn read(kernel: &Kernel, volume: u64) -> Result<Option<Parent>, Refusal> {
        let value = kernel.read_value(&header::name(volume), PARENT)?;
        if value.is_empty() { Ok(None) } else { Parent::decode(volume, &value).map(Some) }
    }
}

/// Records in the format that values of parents have stamps.
pub(crate) fn record_stamps(kernel: &Kernel) -> Result<(), Refusal> {
    if kernel.format().stamped_parents {
        return Ok(());
    }
    kernel.record_feature(|format| std::mem::replace(&mut format.stamped_parents, true))
}

/// Refuses one volume more over a layer that has as many as it may have.
pub(crate) fn may_have_more(kernel: &Kernel, layer: u64) -> Result<(), Refusal> {
    if children(kernel, layer)?.len() < CHILDREN_MAX {
        return Ok(());
    }
    let what = format!("{CHILDREN_MAX} volumes share one snapshot, and no more may");
    Err(Refusal::Failed(onefold_core::Error::new(onefold_core::Kind::Unsupported, what)))
}

/// Records in a layer that a volume may read it. `Mismatch` when the layer goes. There is no limit here: who
/// goes must be able to pass on all volumes over it.
pub(crate) fn link(kernel: &Kernel, layer: u64, child: u64) -> Result<(), Refusal> {
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

/// The refusal for an object that a layer should have.
pub(crate) fn missing(object: ObjectId) -> Refusal {
    Refusal::Failed(corrupt(format_args!("object {object} of a snapshot is missing")))
}

/// True when the header of a layer, which was missing, was lost. It goes only after each volume over it got another
/// parent, or went itself without one that inherits from it.
fn is_lost(kernel: &Kernel, over: u64, layer: u64) -> Result<bool, Refusal> {
    let keys = vec![PARENT.to_vec(), ERASING.to_vec()];
    let answer = match kernel.read_one(&header::name(over), vec![ReadPart::Keys(keys)]) {
        Err(Refusal::Missing) => return Ok(false),
        other => other?,
    };
    match answer.pairs(0).0 {
        [(key, value)] if key == PARENT => {
            Parent::decode(over, value).map(|parent| parent.id == layer)
        }
        _ => Ok(false),
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
        let mut over = volume;
        loop {
            let Some(parent) = parent_of(at)? else {
                return match is_lost(kernel, over, at)? {
                    true => {
                        let what = format_args!("the header of layer {at:x} is missing");
                        Err(Refusal::Failed(corrupt(what)))
                    }
                    false => Ok(None),
                };
            };
            let Some(parent) = parent else { break };
            if layers.len() == LAYERS_MAX {
                let what = format_args!("volume {volume:x} has too many layers below");
                return Err(Refusal::Failed(corrupt(what)));
            }
            objects = objects.min(parent.objects);
            let bits = Bits::read(kernel, parent.id)?;
            (over, at) = (at, parent.id);
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

    /// The layers that have an object of the volume, the nearest first, which alone counts. A layer gets the bit of
    /// an object after its copy is over: one that is under way has none.
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

    /// All objects that layers have.
    pub(crate) fn all(&self) -> Vec<u64> {
        let of_layer = |layer: &Layer| -> Vec<u64> {
            layer.bits.all().take_while(|index| *index < layer.parent.objects).collect()
        };
        self.0.iter().flat_map(of_layer).collect()
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
        for stamp in [0, 9] {
            let parent = Parent { id: 4, objects: 7, stamp: Stamp(stamp) };
            assert_eq!(Parent::decode(5, &parent.encode()).unwrap(), parent);
            assert!(Parent::decode(4, &parent.encode()).is_err());
            assert!(Parent::decode(3, &parent.encode()).is_err());
            assert!(Parent::decode(5, &parent.encode()[1..]).is_err());
            assert!(Parent::decode(5, &[parent.encode(), vec![0]].concat()).is_err());
        }
        // A stamp that no session gives.
        let without = Parent { id: 4, objects: 7, stamp: Stamp(0) }.encode();
        assert!(Parent::decode(5, &[without, vec![0; 8]].concat()).is_err());
    }

    #[test]
    fn rule_09_a_chain_of_too_many_layers_is_damage() {
        let store = Arc::new(MemoryObjects::new(PoolKind::Replicated));
        create(&*store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let session = Session::open(store.clone(), Settings::default()).unwrap();
        let last = LAYERS_MAX as u64 + 1;
        for id in 1..=last {
            let parent = Parent { id: id - 1, objects: 1, stamp: Stamp(0) };
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
