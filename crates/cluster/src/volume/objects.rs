//! The objects of a volume as their owner remembers them: their maps, the bitmap, and what is still
//! to be recorded about each.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use onefold_core::{
    Error, Result,
    object::{Change, Guard, ObjectName, Read, ReadResult, Refusal, Write},
};
use parking_lot::Mutex;

use super::header::{Bits, Seen, name};
use crate::{
    chunk_map::{ChunkMap, covering, map_parts},
    dirty_list::DirtyList,
    format::{ObjectId, Stamp, corrupt, entry::Entry, recut::Recut},
    kernel::Kernel,
    layers::{
        below::{BORN, Below, ERASING, PARENT, Parent, record_stamps},
        copy_up::CopyUp,
    },
    replies::failed,
    rules::Rule,
    session::Session,
};

/// Most decisions about one write; each after the first follows another session's change.
pub(super) const TURNS: u32 = 100;

/// The new content of a range of an object.
#[derive(Clone, Copy)]
pub(super) enum Fill<'a> {
    Bytes(&'a [u8]),
    Zeroes,
}

/// One object of a group of writes: its index, its memory, which is locked, and the new content of
/// ranges, in their order.
pub(super) type Job<'a, 'f> = (u64, &'a mut Object, &'a [(Range<u32>, Fill<'f>)]);

/// The owner's memory of an object. The memory may be out of date, so every operation that changes
/// something compares it.
#[derive(Default)]
pub(super) struct Object {
    known: Option<Known>,
    /// Incremented with every change of `known`.
    revision: u64,
    /// List stamps that may be in the object and are not known to be on the list.
    not_yet_listed: Vec<Stamp>,
    /// The object may be there, and its bit may not be set.
    bit_not_yet_set: bool,
    /// Chunks of writes that failed after a try without a reply: a copy of the write may still be
    /// applied, as long as it finds the entries as they were.
    in_doubt: BTreeSet<u32>,
}

/// The map of an object, or that there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) exists: bool,
    pub(super) entries: BTreeMap<u32, Entry>,
    pub(super) listed: Option<Stamp>,
    pub(super) discarded: Stamp,
    pub(super) recut: Option<Recut>,
    /// Its copy from a layer below is under way.
    pub(super) copying: bool,
}

impl Known {
    pub(super) fn of(map: Option<ChunkMap>) -> Known {
        map.map_or_else(Known::default, |map| Known {
            exists: true,
            entries: map.entries,
            listed: map.listed,
            discarded: map.discarded,
            recut: map.recut,
            copying: map.copying.is_some(),
        })
    }

    /// True when the volume has no object of its own: what a layer below has counts.
    pub(super) fn is_inherited(&self) -> bool {
        !self.exists || self.copying
    }

    /// The chunk that a byte is in: its offset and length. Places without an entry are cut at
    /// multiples of `chunk_bytes`.
    pub(super) fn place(&self, at: u32, chunk_bytes: u32) -> (u32, u32) {
        covering(&self.entries, at)
            .map_or((at / chunk_bytes * chunk_bytes, chunk_bytes), |(offset, entry)| {
                (offset, entry.length)
            })
    }
}

impl Object {
    /// The map, while it is remembered.
    pub(super) fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    pub(super) fn learn(&mut self, known: Known) {
        self.known = Some(known);
        self.revision += 1;
    }

    /// Forgets the map: it is read again when it is needed.
    pub(super) fn forget(&mut self) {
        self.known = None;
        self.revision += 1;
    }

    /// How often the memory of the map has changed.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// True while the header or the dirty list may lack something about it, or a write that failed
    /// may still be applied.
    pub(super) fn is_not_yet_recorded(&self) -> bool {
        self.bit_not_yet_set || !self.is_listed() || !self.in_doubt.is_empty()
    }

    /// A write of these chunks failed after a try without a reply. What is remembered of the map may
    /// be out of date for good.
    pub(super) fn doubt(&mut self, chunks: impl IntoIterator<Item = u32>) {
        self.in_doubt.extend(chunks);
        self.forget();
    }

    /// The store applied an operation that changed the entries of these chunks: no copy of an earlier
    /// one finds them as they were.
    pub(super) fn overtake(&mut self, chunks: impl IntoIterator<Item = u32>) {
        chunks.into_iter().for_each(|chunk| {
            self.in_doubt.remove(&chunk);
        });
    }

    /// The chunks that a write which failed may still change. A later change of one of them is sent
    /// although it changes no content: otherwise the failed write would come after it.
    pub(super) fn in_doubt(&self) -> &BTreeSet<u32> {
        &self.in_doubt
    }

    /// True when no list stamp is left that may be in the object and not on the list.
    pub(super) fn is_listed(&self) -> bool {
        self.not_yet_listed.is_empty()
    }

    /// An operation is about to set this list stamp. The object stays due for the dirty list until
    /// the operation is known not to have been applied, or the list has the stamp.
    pub(super) fn expect_listing(&mut self, listed: Option<Stamp>) {
        self.not_yet_listed.extend(listed);
    }

    /// The operation that was to set this list stamp will never be applied.
    pub(super) fn withdraw_listing(&mut self, listed: Option<Stamp>) {
        self.not_yet_listed.retain(|stamp| Some(*stamp) != listed);
    }

    /// An operation is about to make the object, whose bit may not be set.
    pub(super) fn expect_bit(&mut self) {
        self.bit_not_yet_set = true;
    }
}

/// The objects of one volume. One session owns them and remembers their maps; a session that only
/// reads asks the store each time.
pub(super) struct Objects {
    session: Arc<Session>,
    volume: u64,
    /// The name that the volume was attached by, for errors.
    name: String,
    /// Nobody writes through them.
    read_only: bool,
    /// The header had keys that stay as long as the volume, when it was attached or later.
    lived: AtomicBool,
    remembered: Mutex<BTreeMap<u64, Arc<Mutex<Object>>>>,
    bits: Mutex<Bits>,
    /// What the volume reads where it has no object of its own.
    below: Mutex<Arc<Below>>,
}

impl Objects {
    pub(super) fn new(
        session: Arc<Session>,
        volume: u64,
        name: &str,
        read_only: bool,
        (bits, below): (Bits, Below),
        lived: bool,
    ) -> Objects {
        Objects {
            session,
            volume,
            name: name.to_owned(),
            read_only,
            lived: AtomicBool::new(lived),
            remembered: Mutex::default(),
            bits: Mutex::new(bits),
            below: Mutex::new(Arc::new(below)),
        }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn kernel(&self) -> &Kernel {
        self.session.kernel()
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The name of the volume's header.
    pub(super) fn header(&self) -> ObjectName {
        name(self.volume)
    }

    pub(super) fn id(&self, index: u64) -> ObjectId {
        ObjectId { volume: self.volume, index }
    }

    /// Bytes of an object.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.kernel().format().object_bytes)
    }

    pub(super) fn chunk_bytes(&self) -> u32 {
        self.kernel().format().chunk_bytes
    }

    /// The owner's memory of an object, made if need be.
    pub(super) fn get(&self, index: u64) -> Arc<Mutex<Object>> {
        let mut remembered = self.remembered.lock();
        if remembered.len() >= self.kernel().settings().known_objects.max(1)
            && !remembered.contains_key(&index)
        {
            // Forgets objects that no thread uses and that are fully recorded; they are read again
            // when needed.
            remembered.retain(|_, object| {
                Arc::strong_count(object) > 1 || object.lock().is_not_yet_recorded()
            });
        }
        remembered.entry(index).or_default().clone()
    }

    /// The map as it is remembered, or read.
    pub(super) fn known(&self, index: u64, object: &mut Object) -> Result<Known, Refusal> {
        if object.known.is_none() {
            let map = ChunkMap::read(self.kernel(), self.id(index))?;
            self.remember(index, object, map)?;
        }
        Ok(object.known.clone().unwrap_or_default())
    }

    /// Reads the maps that are not remembered, in flight together.
    pub(super) fn learn_all(&self, jobs: &mut [Job<'_, '_>]) -> Vec<Result<(), Refusal>> {
        let mut results = Vec::new();
        let mut unknown = Vec::new();
        for (n, (index, object, _)) in jobs.iter_mut().enumerate() {
            results.push(Ok(()));
            if object.known.is_none() {
                unknown.push((n, *index, object));
            }
        }
        let reads: Vec<Read> = unknown
            .iter()
            .map(|(_, index, _)| Read { object: self.id(*index).name(), parts: map_parts() })
            .collect();
        for ((n, index, object), answer) in unknown.into_iter().zip(self.kernel().read_all(&reads))
        {
            results[n] = ChunkMap::from_answer(self.id(index), answer)
                .and_then(|map| self.remember(index, object, map));
        }
        results
    }

    fn remember(
        &self,
        index: u64,
        object: &mut Object,
        mut map: Option<ChunkMap>,
    ) -> Result<(), Refusal> {
        if !self.is_as_expected(index, map.as_ref())? {
            map = ChunkMap::read(self.kernel(), self.id(index))?;
            if !self.is_as_expected(index, map.as_ref())? {
                return Err(self.lost(index));
            }
        }
        object.learn(Known::of(map));
        Ok(())
    }

    /// False when there is no map of an object whose bit is set. A layer may have handed the object down between
    /// the two looks: the caller reads the map again then, and another such answer is damage. A session that
    /// does not own the volume reads the header before it believes that an object is absent.
    pub(super) fn is_as_expected(
        &self,
        index: u64,
        map: Option<&ChunkMap>,
    ) -> Result<bool, Refusal> {
        if self.read_only && map.is_some_and(|map| map.erasing) {
            return Err(self.was_deleted());
        }
        let lacks = map.is_none() && self.has_bit(index)?;
        Ok(!lacks || !self.kernel().keeps(Rule::MissingObjectFails))
    }

    /// Returns what `see` makes of the map in an answer to a read that began when the memory had
    /// this revision; `None` when the object [is not as expected](Self::is_as_expected). The owner remembers
    /// the map, unless its memory has changed since.
    pub(super) fn learn_answer<T>(
        &self,
        index: u64,
        revision: u64,
        answer: Result<ReadResult, Refusal>,
        see: impl FnOnce(&Known) -> T,
    ) -> Result<Option<T>, Refusal> {
        let map = ChunkMap::from_answer(self.id(index), answer)?;
        if !self.is_as_expected(index, map.as_ref())? {
            return Ok(None);
        }
        let known = Known::of(map);
        let seen = see(&known);
        let object = self.get(index);
        let mut object = object.lock();
        if object.revision == revision && !self.read_only {
            object.learn(known);
        }
        Ok(Some(seen))
    }

    /// True when the object should exist. A session that does not own the volume reads the header.
    fn has_bit(&self, index: u64) -> Result<bool, Refusal> {
        if !self.read_only {
            return Ok(self.bits.lock().has(index));
        }
        let seen = Seen::read(self.kernel(), self.volume, index, (ERASING, BORN))?;
        // A lock makes a header anew that is gone, without any key.
        let gone = |seen: &Seen| seen.goes || !seen.lives && self.lived.load(Relaxed);
        let seen = seen.filter(|seen| !gone(seen)).ok_or_else(|| self.was_deleted())?;
        self.lived.fetch_or(seen.lives, Relaxed);
        Ok(seen.has_bit)
    }

    fn was_deleted(&self) -> Refusal {
        let what = format!("'{}' was deleted", self.name.escape_debug());
        // Only this volume has gone: who serves goes on with the others.
        Refusal::Failed(Error::new(onefold_core::Kind::NotFound, what))
    }

    /// True when it is known without a look that an object is not there, here and in the layers below.
    pub(super) fn is_absent(&self, index: u64) -> bool {
        // New layers are seen after the bits of what they handed down.
        !self.read_only && !self.below().has(index) && !self.bits.lock().has(index)
    }

    /// The layers below, as they were read last.
    pub(super) fn below(&self) -> Arc<Below> {
        self.below.lock().clone()
    }

    /// A layer went: its objects stand in another one by now, or here. Reads again what there is.
    ///
    /// What was remembered of absent objects counts no more, for any index: those that a layer handed down
    /// are here. It is forgotten after the new layers were read and before others see them, so that nobody
    /// takes an object for absent in both.
    pub(super) fn look_below_again(&self) -> Result<(), Refusal> {
        let below = Below::read(self.kernel(), self.volume)?;
        if !self.read_only {
            let mut bits = self.bits.lock();
            *bits = Bits::read(self.kernel(), self.volume)?;
        }
        let remembered: Vec<_> = self.remembered.lock().values().cloned().collect();
        for object in remembered {
            let mut object = object.lock();
            if object.known().is_none_or(Known::is_inherited) {
                object.forget();
            }
        }
        *self.below.lock() = Arc::new(below);
        Ok(())
    }

    /// Before an object is changed: makes it the volume's own, with what a layer below has of it.
    pub(super) fn make_own(&self, index: u64, object: &mut Object) -> Result<(), Refusal> {
        let copying = object.known().is_some_and(|known| known.copying);
        if !copying && !self.below().has(index)
            || !self.kernel().keeps(Rule::InheritedBeforeChanged)
        {
            return Ok(());
        }
        if !self.known(index, object)?.is_inherited() {
            return Ok(());
        }
        object.forget();
        object.expect_bit();
        self.copy_up(index)?;
        object.bit_not_yet_set = false;
        Ok(())
    }

    /// What layers below have from an object on counts no more. `Busy` while a layer goes: it may have
    /// looked before at what counts.
    pub(super) fn inherit_less(&self, objects: u64) -> Result<(), Refusal> {
        loop {
            let Some(parent) = Parent::read(self.kernel(), self.volume)? else { return Ok(()) };
            let goes = || match self.kernel().read_value(&name(parent.id), ERASING) {
                // It handed everything down: the next look finds another parent.
                Err(Refusal::Missing) => Ok(true),
                other => other.map(|value| !value.is_empty()),
            };
            if goes()? {
                return Err(Refusal::Busy);
            }
            if parent.objects > objects {
                record_stamps(self.kernel())?;
                let less = Parent { objects, ..parent }.stamped(self.kernel());
                let op = Write {
                    object: self.header(),
                    guards: vec![Guard::Exists, Guard::Omap(PARENT.to_vec(), parent.encode())],
                    changes: vec![Change::SetOmap(vec![(PARENT.to_vec(), less.encode())])],
                };
                match self.kernel().until_answered(&op) {
                    // A mismatch may be our own, whose reply was lost.
                    Ok(_) | Err(Refusal::Mismatch) => continue,
                    Err(refusal) => return Err(refusal),
                }
            }
            self.look_below_again()?;
            return if goes()? { Err(Refusal::Busy) } else { Ok(()) };
        }
    }

    /// Copies what a layer below has of an object, or goes on with such a copy.
    pub(super) fn copy_up(&self, index: u64) -> Result<(), Refusal> {
        CopyUp::of(&self.session, self.id(index)).carry_out(&self.below())?;
        self.bits.lock().change(self.kernel(), self.volume, index, true)
    }

    /// The first object of a range that may be there: the others need not be looked at. One whose
    /// first write failed on its way may have no bit.
    pub(super) fn first_there(&self, range: Range<u64>) -> Option<u64> {
        let inherited = self.below().first(range.clone());
        let own = self.bits.lock().first(range.clone());
        let marked = own.into_iter().chain(inherited).min();
        let range = range.start..marked.unwrap_or(range.end).max(range.start);
        let remembered: Vec<_> = self
            .remembered
            .lock()
            .range(range)
            .map(|(index, object)| (*index, object.clone()))
            .collect();
        remembered
            .into_iter()
            .find(|(_, object)| object.lock().is_not_yet_recorded())
            .map(|(index, _)| index)
            .or(marked)
    }

    /// All objects that may be there, in any order.
    pub(super) fn all_there(&self) -> Vec<u64> {
        let inherited = self.below().all();
        self.bits.lock().all().chain(inherited).collect()
    }

    /// Completes a write before it is acknowledged: sets the bit of a new object, and inserts the
    /// object into the dirty list.
    pub(super) fn join_dirty_list(&self, index: u64, object: &mut Object) -> Result<(), Refusal> {
        // A copy from a layer that goes may have ended without its place on the list: whoever copied it
        // was killed, or is about to insert it. It has no bit then.
        if self.below().has(index) && !self.bits.lock().has(index) {
            self.list_copy(index)?;
        }
        // The list comes last: while the insert is due, the bit may be missing too.
        self.bits.lock().change(self.kernel(), self.volume, index, true)?;
        object.bit_not_yet_set = false;
        while let Some(stamp) = object.not_yet_listed.last() {
            if self.kernel().keeps(Rule::ListedBeforeAcknowledged) {
                self.kernel()
                    .until_answered(&DirtyList::of(self.kernel()).insert(self.id(index), *stamp))?;
            }
            object.not_yet_listed.pop();
        }
        Ok(())
    }

    /// Puts an object on the dirty list that may be the copy of another session.
    fn list_copy(&self, index: u64) -> Result<(), Refusal> {
        match ChunkMap::read(self.kernel(), self.id(index))? {
            Some(map) if self.kernel().keeps(Rule::CopyListedByWriter) => {
                DirtyList::of(self.kernel()).list_again(self.id(index), &map).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Completes what a crash of the previous owner may have left undone for one object: its bit,
    /// and its place on the dirty list.
    pub(super) fn rescan(&self, index: u64) -> Result<()> {
        let id = self.id(index);
        let again = || -> Result<(), Refusal> {
            if let Some(map) = ChunkMap::read(self.kernel(), id)? {
                if map.copying.is_some() {
                    return self.copy_up(index);
                }
                self.bits.lock().change(self.kernel(), self.volume, index, true)?;
                DirtyList::of(self.kernel()).list_again(id, &map)?;
            }
            Ok(())
        };
        again().map_err(|refusal| failed(format_args!("object {id}"), refusal))
    }

    /// True when the header and the dirty list lack nothing about any object.
    pub(super) fn are_recorded(&self) -> bool {
        !self.remembered.lock().values().any(|object| object.lock().is_not_yet_recorded())
    }

    /// Completes what failed writes left undone, of which none may still come.
    pub(super) fn complete(&self) -> Result<()> {
        let remembered: Vec<_> = {
            let all = self.remembered.lock();
            all.iter().map(|(index, object)| (*index, object.clone())).collect()
        };
        for (index, object) in remembered {
            let mut object = object.lock();
            if object.is_not_yet_recorded() {
                self.rescan(index)?;
                object.bit_not_yet_set = false;
                object.not_yet_listed.clear();
            }
        }
        Ok(())
    }

    /// The refusal for an object that should be there.
    pub(super) fn lost(&self, index: u64) -> Refusal {
        Refusal::Failed(corrupt(format_args!(
            "object {} of volume '{}' is missing",
            self.id(index),
            self.name.escape_debug()
        )))
    }

    /// The error of an object, for a client.
    pub(super) fn failed(&self, index: u64, refusal: Refusal) -> Error {
        failed(format_args!("object {index} of volume '{}'", self.name.escape_debug()), refusal)
    }
}
