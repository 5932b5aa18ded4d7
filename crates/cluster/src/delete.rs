//! Deleting: entries become pending drops, the drops are done, then the object is removed. In any
//! other order the references would no longer be known.
//!
//! A session that could still write is fenced first. Deleting can resume after any step, because
//! its record is removed last.

use std::{ops::Range, sync::Arc, time::Duration};

use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, ObjectName, Pool, ReadPart, Refusal, Write},
};

use crate::{
    chunk_map::ChunkMap,
    format::{
        ENTRIES_MAX, ObjectId,
        catalogue::{Named, What},
        entry::{self, Entry, Sums},
        key,
    },
    kernel::{Fate, Operation, Outcome},
    layers::{
        below::{BORN, CHILD, ERASING, PARENT},
        erasure::{Handed, Leaving},
    },
    names::{FILL, Names, Record, valid_size},
    replies::failed,
    rules::Rule,
    session::Session,
    volume::{
        GoesOn, Mode, Volume,
        header::{self, Bits, LOCK, OWNER},
        kept_in_layers::give_back,
        trims_first::{Wait, apply_all},
    },
};

/// Pieces that may be missing between others, because they were in flight together when the session
/// that filled them died.
const GAP: u64 = 16;

/// After so many missing pieces in a row none follows. The limit bounds the cost of a false number
/// of pieces.
const MISSING_MAX: u64 = 1 << 16;

/// Most decisions about one step of deleting an object.
const ERASURE_DECISIONS: u32 = 1000;

/// Layers that one step looks at for chunks that are kept there.
const COOLED_A_STEP: usize = 16;

/// Names of a page of the pool's listing.
const NAMES_A_PAGE: usize = 1000;

/// Deleting by one session.
#[derive(Clone, Copy)]
pub(crate) struct Deletion<'s> {
    session: &'s Session,
    /// Objects that go say so, to those who look for them below a volume of their own.
    marks: bool,
    /// No object is begun after this, by the clock of this host.
    until: Option<Duration>,
}

impl<'s> Deletion<'s> {
    pub(crate) fn of(session: &'s Session) -> Deletion<'s> {
        Deletion { session, marks: false, until: None }
    }

    /// Removes a metadata object with its references; nothing when it is not there.
    pub(crate) fn erase(&self, object: ObjectId) -> Result<(), Refusal> {
        let mut erasure = Erasure { session: self.session, object, marks: self.marks };
        // Each step that is applied leaves fewer keys.
        while self.session.kernel().carry_out(&mut erasure)? != Outcome::GivenUp {}
        Ok(())
    }

    fn is_late(&self) -> bool {
        let now = || self.session.kernel().store().monotonic();
        self.until.is_some_and(|until| now() >= until)
    }

    /// The same, unless the time is over: then `Busy`.
    fn erase_in_time(&self, object: ObjectId) -> Result<(), Refusal> {
        if self.is_late() { Err(Refusal::Busy) } else { self.erase(object) }
    }

    /// Advances each deletion by one step, also of volumes and objects whose session is gone, and
    /// finishes renames that were begun; false when there is nothing to do.
    fn step(&self) -> Result<bool> {
        let names = Names::of(self.session.kernel());
        let unfinished = names.unfinished()?;
        let mut any = names.finish_renames(&unfinished)?;
        let (mut stuck, mut looked, mut uncooled) = (None, 0, Vec::new());
        for (shard, record) in unfinished.records {
            let failed = |refusal| {
                failed(
                    format_args!("what was deleted ({}) can't be removed", record.named.id),
                    refusal,
                )
            };
            // It waits for its sender, however long that is away.
            if record.is_received() {
                continue;
            }
            if self.is_late() {
                return Ok(any);
            }
            let kept = record.is_kept();
            let step = match kept {
                true => self.cool(record.named.id, &mut looked),
                false => self.delete_record(&shard, &record),
            };
            match step.map_err(failed) {
                Ok(done) => any |= done,
                // Nothing goes for this session any more, or it may not shut out an owner.
                Err(error) if matches!(error.kind(), Kind::Stopped | Kind::Denied) => {
                    return Err(error);
                }
                // One that fails keeps no other one from going: those may make the room that it lacks.
                Err(error) => {
                    uncooled.extend(kept.then_some(record.named.id));
                    stuck = stuck.or(Some(error));
                }
            }
        }
        match stuck {
            Some(error) if !any => {
                // Kept chunks only take room: the failure is told once, and another session tries again.
                self.session.cooled().lock().extend(uncooled);
                Err(error)
            }
            _ => Ok(any),
        }
    }

    /// Gives back some of what is kept in a layer that stays, unless this step looked at many; false when there was
    /// nothing.
    fn cool(&self, id: u64, looked: &mut usize) -> Result<bool, Refusal> {
        if *looked == COOLED_A_STEP || self.session.cooled().lock().contains(&id) {
            return Ok(false);
        }
        *looked += 1;
        let any = give_back(self.session, id)?;
        if !any {
            self.session.cooled().lock().insert(id);
        }
        Ok(any)
    }

    fn delete_record(&self, shard: &ObjectName, record: &Record) -> Result<bool, Refusal> {
        let (id, header) = (record.named.id, header::name(record.named.id));
        let cookie = self.session.kernel().cookie();
        // A session that fills the object holds the lock, and so does another one that deletes it.
        match self.session.kernel().store().lock(
            &header,
            FILL,
            &cookie,
            Some(self.session.kernel().settings().lease),
        ) {
            Ok(()) => {}
            Err(Refusal::Busy | Refusal::Unknown) => return Ok(false),
            Err(refusal) => return Err(refusal),
        }
        let still = self
            .session
            .kernel()
            .read_one(shard, vec![ReadPart::Keys(vec![key::numbered(b'x', id)])])?;
        let still = still.pairs(0).0.first().map(|(_, value)| value.clone());
        if !record.filler.is_empty() {
            if record.filler == self.session.kernel().store().identity() {
                return Ok(false);
            }
            if still != Some(record.encode()) {
                // The object was finished meanwhile, or another session was faster and may be at
                // work.
                Names::of(self.session.kernel()).unlock_filled(id);
                return Ok(false);
            }
            self.session.kernel().store().fence(&record.filler)?;
            Names::of(self.session.kernel()).abandon(shard, record)?;
            return Ok(true);
        }
        // Another one may have been faster: then nothing is left, and the lock made a header anew.
        if still.is_some() {
            let erased = self.erase_all(id, record);
            if self.is_late() || matches!(erased, Ok(Handed::Waits)) {
                // Another one goes on.
                Names::of(self.session.kernel()).unlock_filled(id);
                return erased.map(|_| false);
            }
            erased?;
        }
        match self.session.kernel().until_answered(&Write {
            object: header,
            guards: Vec::new(),
            changes: vec![Change::Remove],
        }) {
            Ok(_) | Err(Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
        Names::of(self.session.kernel()).forget(shard, id)?;
        Ok(true)
    }

    /// Erases all objects of a number, and hands down what others read of them; `Busy` when the time is over.
    fn erase_all(&self, id: u64, record: &Record) -> Result<Handed, Refusal> {
        let marks = self.fence_owner(id)?;
        let erase = |object| self.erase_in_time(object);
        if marks && Leaving::of(self.session, id, &erase).hand_down()? == Handed::Waits {
            return Ok(Handed::Waits);
        }
        match record.named.what {
            What::Put => self.erase_pieces(id, record.named.pieces)?,
            What::Volume => Deletion { marks, ..*self }.erase_objects(id, 0, record.named.bytes)?,
        }
        Ok(Handed::Down)
    }

    /// Shuts out the last session that wrote to a volume; true when the volume is a layer, or has one.
    fn fence_owner(&self, id: u64) -> Result<bool, Refusal> {
        let header = header::name(id);
        let keys = [OWNER, PARENT, BORN, ERASING].map(<[u8]>::to_vec).to_vec();
        let parts = vec![ReadPart::Keys(keys), ReadPart::Page(vec![CHILD], 1)];
        let answer = self.session.kernel().read_one(&header, parts)?;
        let found = answer.pairs(0).0;
        let owner = found.iter().find(|(key, _)| key == OWNER);
        let owner = owner.map(|(_, value)| value.clone()).unwrap_or_default();
        let has_layers = found.iter().any(|(key, _)| key != OWNER)
            || answer.pairs(1).0.iter().any(|(key, _)| key.first() == Some(&CHILD));
        if !self.session.kernel().keeps(Rule::DeletedVolumeFenced) {
            return Ok(has_layers);
        }
        let mut identities =
            vec![String::from_utf8_lossy(owner.get(1..).unwrap_or_default()).into_owned()];
        identities.extend(
            self.session.kernel().store().holder(&header, LOCK)?.map(|holder| holder.identity),
        );
        for identity in identities.iter().filter(|identity| {
            !identity.is_empty() && **identity != self.session.kernel().store().identity()
        }) {
            self.session.kernel().store().fence(identity)?;
        }
        Ok(has_layers)
    }

    fn erase_pieces(&self, id: u64, pieces: u64) -> Result<(), Refusal> {
        let (mut index, mut missing) = (0, 0);
        while missing < if index < pieces { MISSING_MAX } else { GAP } {
            let object = ObjectId { volume: id, index };
            missing = if ChunkMap::read(self.session.kernel(), object)?.is_some() {
                0
            } else {
                missing + 1
            };
            self.erase_in_time(object)?;
            index += 1;
            if index.is_multiple_of(64) {
                Names::of(self.session.kernel()).keep_filling(id)?;
            }
        }
        Ok(())
    }

    /// Erases the objects of a volume from byte `from` to `to`, and objects behind `to` that an
    /// interrupted shrink left. After a crash of the owner an object before `to` may have no bit. A
    /// few objects are looked up one by one. Many are found in the pool's listing, whose cost
    /// depends on the objects that exist.
    fn erase_objects(&self, id: u64, from: u64, to: u64) -> Result<(), Refusal> {
        let object_bytes = u64::from(self.session.kernel().format().object_bytes);
        let mut bits = Bits::read(self.session.kernel(), id)?;
        let (first, end) = (from.div_ceil(object_bytes), to.div_ceil(object_bytes));
        if end.saturating_sub(first) <= self.session.kernel().settings().looked_for_max {
            for index in first..end {
                self.erase_one(id, index, &mut bits)?;
            }
        } else {
            self.erase_listed(id, first..end, &mut bits)?;
        }
        let left = bits.clone();
        for index in left.all().filter(|index| *index >= first) {
            self.erase_one(id, index, &mut bits)?;
        }
        Ok(())
    }

    /// Erases the objects of a volume that the pool lists. Its writers are fenced, so no object
    /// appears after the listing has passed.
    fn erase_listed(&self, id: u64, range: Range<u64>, bits: &mut Bits) -> Result<(), Refusal> {
        let mut from = None;
        loop {
            let page = self.session.kernel().store().list(
                Pool::Metadata,
                from.as_deref(),
                NAMES_A_PAGE,
            )?;
            Names::of(self.session.kernel()).keep_filling(id)?;
            for object in page.names.iter().filter_map(|name| ObjectId::parse(name)) {
                if object.volume == id && range.contains(&object.index) {
                    self.erase_one(id, object.index, bits)?;
                }
            }
            if page.next.is_none() {
                return Ok(());
            }
            from = page.next;
        }
    }

    fn erase_one(&self, id: u64, index: u64, bits: &mut Bits) -> Result<(), Refusal> {
        self.erase_in_time(ObjectId { volume: id, index })?;
        bits.change(self.session.kernel(), id, index, false)?;
        if index.is_multiple_of(64) {
            Names::of(self.session.kernel()).keep_filling(id)
        } else {
            Ok(())
        }
    }
}

/// A step by which a metadata object is deleted: entries become pending drops, the drops are done,
/// then the object is removed.
struct Erasure<'a> {
    session: &'a Session,
    object: ObjectId,
    marks: bool,
}

impl Erasure<'_> {
    /// The changes that make all entries zeroes and their bases pending drops. Drops that were
    /// pending are done.
    fn strip(&self, map: &ChunkMap) -> Vec<Change> {
        let (object, stamp) = (self.object, self.session.kernel().stamp());
        let mut set = Vec::new();
        set.extend(self.marks.then(|| (key::ERASED.to_vec(), vec![1])));
        for (offset, old) in &map.entries {
            let new = Entry {
                dirty: false,
                mask: 0,
                base: None,
                stamp,
                sums: Sums::NONE,
                length: old.length,
            };
            set.push((key::entry(*offset), new.encode(object, *offset)));
            if let Some((chunk, reference)) = old.reference(object, *offset) {
                set.push((
                    key::pending(*offset, reference.stamp),
                    entry::encode_pending(object, *offset, &chunk),
                ));
            }
        }
        let done = map
            .pending
            .iter()
            .map(|(_, reference)| key::pending(reference.offset, reference.stamp))
            .collect();
        vec![Change::DropOmap(done), Change::SetOmap(set)]
    }
}

impl Operation<Option<ChunkMap>> for Erasure<'_> {
    fn decisions(&self) -> u32 {
        ERASURE_DECISIONS
    }

    fn look(&mut self) -> Result<Option<ChunkMap>, Refusal> {
        ChunkMap::read(self.session.kernel(), self.object)
    }

    fn decide(&mut self, seen: &Option<ChunkMap>) -> Result<Option<Write>, Refusal> {
        let Some(map) = seen else { return Ok(None) };
        self.session.chunk_pool().drop_references(&map.pending)?;
        let drops_first = self.session.kernel().keeps(Rule::DropsBeforeRemoval);
        let changes =
            if !drops_first || is_bare(map) { vec![Change::Remove] } else { self.strip(map) };
        let guards = vec![Guard::Version(map.version)];
        Ok(Some(Write { object: self.object.name(), guards, changes }))
    }

    /// The next decision begins from the current map, whichever session changed it.
    fn resolve(&self, _: &Option<ChunkMap>) -> Fate {
        Fate::Overtaken
    }
}

/// Frees what was deleted, for so long at most by the clock of this host: workers do the rest, and what fails.
pub fn delete_for(session: &Session, most: Duration) {
    let until = Some(session.kernel().store().monotonic().saturating_add(most));
    let deletion = Deletion { until, ..Deletion::of(session) };
    while !deletion.is_late() && matches!(deletion.step(), Ok(true)) {}
}

impl Session {
    /// Advances each deletion by one step, also of volumes and objects whose session is gone, and
    /// finishes renames that were begun; false when there is nothing to do.
    ///
    /// # Errors
    /// The store's.
    pub fn delete_step(&self) -> Result<bool> {
        Deletion::of(self).step()
    }

    /// Changes the size of a volume that nobody writes to. Data beyond a smaller size are deleted.
    ///
    /// # Errors
    /// `Busy`: another server writes to the volume. Otherwise as [`Volume::attach`].
    pub fn resize_volume(self: &Arc<Self>, name: &str, bytes: u64) -> Result<()> {
        resize(self, name, bytes, Wait::unbounded())
    }
}

/// Changes the size of a volume in a server, for one who asks whether to go on: it waits for long trims of the volume for
/// a bounded time.
///
/// # Errors
/// As [`Session::resize_volume`]; those of who asks; `Busy` when its trims take long.
pub fn resize_volume_while(
    session: &Arc<Session>,
    name: &str,
    bytes: u64,
    goes_on: GoesOn<'_>,
) -> Result<()> {
    resize(session, name, bytes, Wait::served(goes_on))
}

fn resize(session: &Arc<Session>, name: &str, bytes: u64, wait: Wait<'_>) -> Result<()> {
    valid_size(bytes)?;
    // Attaching fences the previous owner, so that none of its operations writes into the part
    // that is cut off.
    let volume = Volume::attach(session, name, Mode::Own)?;
    let names = Names::of(session.kernel());
    // Another volume may have the name by now.
    let old =
        names.find_finished(name)?.filter(|named| named.id == volume.id()).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("there is no volume '{}'", name.escape_debug()))
        })?;
    if bytes < old.bytes {
        // Nothing was changed yet.
        if let Err(error) = apply_all(&volume, wait) {
            // Where this fails its lock ends with its lease.
            let _ = volume.detach();
            return Err(error);
        }
        volume.inherit_less(bytes)?;
        volume.discard(bytes, old.bytes - bytes)?;
        while volume.discard_step()? {}
    }
    let new = Named { bytes, ..old.counted()? };
    let say = |refusal| {
        failed(format_args!("volume '{}' can't be resized", name.escape_debug()), refusal)
    };
    if bytes > old.bytes {
        // A shrink that was interrupted may have left objects, or the bit of one that is gone.
        Deletion::of(session).erase_objects(volume.id(), old.bytes, old.bytes).map_err(say)?;
    }
    names.change(name, Some(&old), Some(&new)).map_err(say)?;
    volume.set_size(bytes);
    let erased = if bytes < old.bytes {
        Deletion::of(session).erase_objects(volume.id(), bytes, old.bytes).map_err(say)
    } else {
        Ok(())
    };
    volume.detach()?;
    erased
}

/// True when no pending drop or entry names a chunk, and no dirty entry could get one.
fn is_bare(map: &ChunkMap) -> bool {
    debug_assert!(map.entries.len() <= ENTRIES_MAX);
    map.pending.is_empty() && map.entries.values().all(|entry| entry.base.is_none() && !entry.dirty)
}
