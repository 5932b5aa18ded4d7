//! An object that a volume inherits becomes its own, before it is changed there or its layer goes.
//!
//! | step | after a crash |
//! |---|---|
//! | the object is made, with nothing but the key `U` and a stamp | who reads still reads the layer below; who copies goes on with the same stamp |
//! | who deletes the layer: the volume has the same parent still | likewise |
//! | references of the new entries are noted, and added with that stamp | they count as used while the object has `U` with it |
//! | one operation that compares `U` takes it away, and sets the entries and the blocks that stand in the object | the volume has an object of its own; who writes to it next puts it on the dirty list, since it has no bit |
//! | the object is put on the dirty list | likewise |
//! | its bit is set | done |
//!
//! Two sessions may copy one object. They add references with the same stamp, one of them ends the
//! copy, and the other one drops those of its references that no entry names.

use std::collections::BTreeMap;

use onefold_core::object::{Change, Guard, Read, ReadPart, Refusal, Write};

use super::below::{Below, Parent, missing};
use crate::{
    chunk_map::{ChunkMap, map_parts, stamp_value},
    dirty_list::DirtyList,
    format::{
        BLOCK, Chunk, ObjectId, Reference, Stamp,
        catalogue::Cut,
        entry::{Base, Entry, Sums},
        key,
        recut::Recut,
    },
    kernel::Kernel,
    rules::Rule,
    session::Session,
};

/// Most decisions about one object; each after the first follows another session's change, or a lost
/// reply.
const TURNS: u32 = 100;

/// What the object in a layer holds: its entries, and the bytes of dirty ones.
struct Source {
    entries: BTreeMap<u32, Entry>,
    standing: BTreeMap<u32, Vec<u8>>,
}

/// The result of a look for the object in the layers below.
enum Look {
    Found(Source),
    /// The object changed between two reads, and is looked at again.
    Changed,
    /// A layer that should have it has it not, or not any more.
    Gone(ObjectId),
}

/// A copy of one object.
pub(crate) struct CopyUp<'a> {
    session: &'a Session,
    object: ObjectId,
    /// The parent that the volume has while it is copied to: another session copies to it that is not the owner.
    inherits: Option<Parent>,
    /// References that were added, in all turns.
    added: Vec<(Chunk, Reference)>,
}

impl<'a> CopyUp<'a> {
    pub(crate) fn of(session: &'a Session, object: ObjectId) -> CopyUp<'a> {
        CopyUp { session, object, inherits: None, added: Vec::new() }
    }

    /// A copy by who deletes the layer, for a volume that inherits from the layer.
    pub(crate) fn of_child(self, inherits: Parent) -> CopyUp<'a> {
        CopyUp { inherits: Some(inherits), ..self }
    }

    fn kernel(&self) -> &'a Kernel {
        self.session.kernel()
    }

    /// Makes the object the volume's own, and puts it on the dirty list. The caller sets its bit then: a set bit
    /// tells the owner that the object is on the list.
    ///
    /// # Errors
    /// The store's; the copy may be under way then, and anybody goes on with it. `Corrupt` when a layer should
    /// have the object, and has not.
    pub(crate) fn carry_out(mut self, below: &Below) -> Result<(), Refusal> {
        let copied = self.copy(below);
        let settled = self.settle();
        copied.and(settled)?;
        if let Some(map) = ChunkMap::read(self.kernel(), self.object)? {
            DirtyList::of(self.kernel()).list_again(self.object, &map)?;
        }
        Ok(())
    }

    fn copy(&mut self, below: &Below) -> Result<(), Refusal> {
        let (mut again, mut lacked, mut lost, mut begun) = (None, None, None, false);
        for _ in 0..TURNS {
            let stamp = match ChunkMap::read(self.kernel(), self.object)? {
                // Whoever deletes the volume removed it: made again, it would belong to nothing.
                None if begun => return Err(Refusal::Missing),
                None => {
                    begun = self.begin()?;
                    continue;
                }
                Some(ChunkMap { copying: Some(stamp), .. }) => stamp,
                Some(_) => return Ok(()),
            };
            if !self.still_inherits(stamp)? {
                return Err(Refusal::Mismatch);
            }
            let source = match self.source(again.as_ref().unwrap_or(below))? {
                Look::Found(source) => source,
                Look::Changed => continue,
                // The layers were read since it was missing first, and one of them should have it.
                Look::Gone(object) if lost == Some(object) => return Err(missing(object)),
                // The layer handed it down, to this volume or to one below.
                Look::Gone(object) => {
                    lost = Some(object);
                    again = Some(Below::read(self.kernel(), self.object.volume)?);
                    continue;
                }
            };
            let is_lost = lacked.as_ref() == Some(&source.entries);
            let op = self.end(stamp, &source, is_lost)?;
            if op.is_none() {
                lacked = Some(source.entries);
            }
            if let Some(op) = op {
                match self.kernel().write_one(&op) {
                    // The next turn finds out.
                    Ok(_) | Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
        }
        Err(Refusal::Mismatch)
    }

    /// True while the volume has the parent that the copy began with. Another session may have handed all down
    /// before, and the owner may have cut the object off since: it would come back when the volume grows. Who
    /// cuts it off after this look removes the object with its `U`, or is refused while the layer goes.
    fn still_inherits(&self, stamp: Stamp) -> Result<bool, Refusal> {
        let Some(inherits) = self.inherits else { return Ok(true) };
        let now = match Parent::read(self.kernel(), self.object.volume) {
            Ok(now) if now == Some(inherits) => return Ok(true),
            Err(Refusal::Missing) => return Ok(false),
            now => now?,
        };
        if now.is_none_or(|parent| self.object.index >= parent.objects) {
            // Nobody goes on with it.
            match self.kernel().until_answered(&Write {
                object: self.object.name(),
                guards: vec![Guard::Omap(key::COPYING.to_vec(), stamp_value(stamp))],
                changes: vec![Change::Remove],
            }) {
                Ok(_) | Err(Refusal::Mismatch | Refusal::Missing) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(false)
    }

    /// Makes the object, with nothing in it; false without an answer.
    fn begin(&self) -> Result<bool, Refusal> {
        let stamp = self.kernel().stamp();
        let mut pairs = vec![(key::COPYING.to_vec(), stamp_value(stamp))];
        if self.kernel().format().volume_cut == Cut::Content {
            pairs.push((key::RECUT.to_vec(), Recut::none(stamp).encode()));
        }
        let op = Write {
            object: self.object.name(),
            guards: vec![Guard::Absent],
            changes: vec![Change::SetOmap(pairs)],
        };
        match self.kernel().write_one(&op) {
            Ok(_) | Err(Refusal::Exists | Refusal::Mismatch) => Ok(true),
            Err(Refusal::Unknown) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    /// What the nearest layer has; nothing in it when none does. An object of a layer that has a bit and is being
    /// copied is none: a late operation began it again, after it was erased.
    fn source(&self, below: &Below) -> Result<Look, Refusal> {
        let Some(source) = below.sources(self.object.index).next() else {
            return Ok(Look::Found(Source { entries: BTreeMap::new(), standing: BTreeMap::new() }));
        };
        match ChunkMap::read(self.kernel(), source)? {
            Some(map) if map.holds_content() => self.standing(source, map),
            _ => Ok(Look::Gone(source)),
        }
    }

    /// Reads the bytes of dirty entries together with the map.
    fn standing(&self, source: ObjectId, map: ChunkMap) -> Result<Look, Refusal> {
        let dirty: Vec<(u32, u32)> = map
            .entries
            .iter()
            .filter(|(_, entry)| entry.dirty && entry.mask != 0)
            .map(|(offset, entry)| (*offset, entry.length))
            .collect();
        if dirty.is_empty() {
            let source = Source { entries: map.entries, standing: BTreeMap::new() };
            return Ok(Look::Found(source));
        }
        let data = dirty.iter().map(|(at, bytes)| ReadPart::Data((*at).into(), (*bytes).into()));
        let parts = map_parts().into_iter().chain(data).collect();
        let answer = match self.kernel().read_all(&[Read { object: source.name(), parts }]).pop() {
            Some(Ok(answer)) => answer,
            Some(Err(Refusal::Missing)) | None => return Ok(Look::Gone(source)),
            Some(Err(refusal)) => return Err(refusal),
        };
        let data = |(n, (at, bytes)): (usize, &(u32, u32))| {
            let mut content = answer.data(n + 2).to_vec();
            content.resize(*bytes as usize, 0);
            (*at, content)
        };
        let standing = dirty.iter().enumerate().map(data).collect();
        Ok(match ChunkMap::from_answer(source, Ok(answer))? {
            Some(now) if now.holds_content() && now.entries == map.entries => {
                Look::Found(Source { entries: now.entries, standing })
            }
            // A worker was there meanwhile.
            Some(now) if now.holds_content() => Look::Changed,
            _ => Look::Gone(source),
        })
    }

    /// The operation that ends the copy, after its references were added; `None` when a chunk is gone that
    /// the layer named. Where `is_lost`, the layer still names it: the copy names it, too, and is damaged
    /// where the layer is, and nowhere else.
    fn end(
        &mut self,
        stamp: Stamp,
        source: &Source,
        is_lost: bool,
    ) -> Result<Option<Write>, Refusal> {
        let object = self.object;
        let named = source.entries.iter().filter_map(|(offset, entry)| {
            let reference = Reference { object, offset: *offset, stamp };
            entry.base.map(|base| (base.chunk, reference))
        });
        let named: Vec<(Chunk, Reference)> = named.collect();
        let chunks: Vec<Chunk> = if self.kernel().keeps(Rule::CopyHasReferences) {
            let chunks = self.session.chunk_pool().refer_again(&named)?;
            let added = chunks.iter().zip(&named);
            self.added.extend(added.filter_map(|(chunk, (_, of))| chunk.map(|chunk| (chunk, *of))));
            if !is_lost && chunks.contains(&None) {
                return Ok(None);
            }
            chunks.iter().zip(&named).map(|(chunk, (old, _))| chunk.unwrap_or(*old)).collect()
        } else {
            named.iter().map(|(chunk, _)| *chunk).collect()
        };
        let mut chunks = chunks.into_iter();
        let (mut changes, mut pairs) = (Vec::new(), Vec::new());
        let own = self.kernel().stamp();
        let mut listed = false;
        for (offset, old) in &source.entries {
            let base = old.base.and_then(|_| chunks.next()).map(|chunk| Base { chunk, stamp });
            let mut new = Entry {
                mask: if old.dirty { old.mask } else { 0 },
                base,
                stamp: own,
                sums: Sums::NONE,
                ..old.clone()
            };
            if let Some(content) = source.standing.get(offset) {
                self.write_blocks(*offset, content, &mut new, &mut changes);
            }
            listed |= new.dirty;
            pairs.push((key::entry(*offset), new.encode(object, *offset)));
        }
        if listed {
            pairs.push((key::LISTED.to_vec(), stamp_value(own)));
        }
        changes.push(Change::DropOmap(vec![key::COPYING.to_vec()]));
        changes.push(Change::SetOmap(pairs));
        let guards = vec![Guard::Omap(key::COPYING.to_vec(), stamp_value(stamp))];
        Ok(Some(Write { object: object.name(), guards, changes }))
    }

    /// Writes the blocks of the mask that are not zeroes; the others are holes.
    fn write_blocks(
        &self,
        offset: u32,
        content: &[u8],
        entry: &mut Entry,
        changes: &mut Vec<Change>,
    ) {
        let sealed = self.kernel().is_sealed();
        let mut sums = Sums::NONE;
        for (block, bytes) in content.chunks(BLOCK as usize).enumerate() {
            let (block, at) = (block as u32, offset + block as u32 * BLOCK);
            if entry.mask >> block & 1 == 0 || onefold_core::block::is_zero(bytes) {
                continue;
            }
            let mut bytes = bytes.to_vec();
            if sealed {
                bytes.resize(BLOCK as usize, 0);
                sums.set(block, self.kernel().hashing().sum(self.object, at / BLOCK, &bytes));
            }
            changes.push(Change::Write(at.into(), bytes));
        }
        if sealed {
            entry.sums = sums.within(entry.mask);
        }
    }

    /// Drops those of the references that no entry names.
    fn settle(&mut self) -> Result<(), Refusal> {
        let added = std::mem::take(&mut self.added);
        let pool = self.session.chunk_pool();
        let settled = pool.drop_unused_references(self.object, &added);
        settled.inspect_err(|_| pool.attempts_are_open(added))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onefold_core::object::PoolKind;
    use onefold_testbed::MemoryObjects;

    use super::*;
    use crate::{Format, Mode, Settings, Snapshots, Volume, create};

    #[test]
    fn a_write_to_a_copy_that_was_cut_off_is_on_the_dirty_list_when_it_is_acknowledged() {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let open = |name| {
            let store = Arc::new(store.session(name));
            Arc::new(Session::open(store, Settings::default()).unwrap())
        };
        let (one, other) = (open("one"), open("other"));
        one.create_volume("v", 8 << 20).unwrap();
        let write = |at| {
            let volume = Volume::attach(&one, "v", Mode::Own).unwrap();
            volume.write_at(at, &[1; 8192]).unwrap();
            volume
        };
        write(0).detach().unwrap();
        Snapshots::of(&one).take("v@a").unwrap();
        let object = ObjectId { volume: one.find("v").unwrap().unwrap().id, index: 0 };
        let below = Below::read(other.kernel(), object.volume).unwrap();
        CopyUp::of(&other, object).copy(&below).unwrap();
        let listed = || {
            let map = ChunkMap::read(other.kernel(), object).unwrap().unwrap();
            assert!(!map.has_no_work());
            DirtyList::of(other.kernel()).is_listed(object, &map).unwrap()
        };
        assert!(!listed());
        let volume = write(4096);
        assert!(listed());
        volume.detach().unwrap();
    }
}
