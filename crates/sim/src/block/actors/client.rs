//! Clients: their requests, and the answers that they must get.

use onefold_core::{BLOCK_BYTES, Block, BlockRead, Error, ExtentKind, Kind, Lba, Ticket};
use onefold_testbed::content::{Content, ZEROES};

use super::{domain_limits::is_of_domain, quotas::is_of_quota};
use crate::{
    block::{
        model::{Key, LOST, Outcome},
        params::{Op, Profile},
        run::{Flow, Sim},
        subject::Subject,
    },
    checker::{Checker, Failure},
};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks of one read request when all is read.
pub(super) const READ_BLOCKS: u64 = 64;

/// A change of a byte range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    Write(&'a [u8]),
    Trim(u64),
    Zeroes(u64, bool),
}

impl Change<'_> {
    pub(super) fn bytes(&self) -> u64 {
        match *self {
            Change::Write(data) => data.len() as u64,
            Change::Trim(bytes) | Change::Zeroes(bytes, _) => bytes,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Change::Write(_) => "write",
            Change::Trim(_) => "trim",
            Change::Zeroes(..) => "write zeroes",
        }
    }
}

impl<S: Subject> Sim<S> {
    /// One request.
    pub(crate) fn request(&mut self, op: Op) -> Flow<()> {
        match op {
            Op::Flush => return self.flush(),
            Op::Idle => return self.idle(),
            Op::Verb => return self.verb(),
            Op::Clock => {
                self.clock.advance(std::time::Duration::from_secs(self.rng.below(10_000)));
                return Ok(());
            }
            _ => {}
        }
        let read = matches!(op, Op::Read | Op::Extents);
        let Some(key) = self.any_volume(read) else { return Ok(()) };
        match op {
            Op::Write | Op::Fua => {
                let most = if self.rng.percent(50) { 1 } else { 8 };
                let ticket = self.write_blocks(key, most)?;
                if let (Op::Fua, Some(ticket)) = (op, ticket) {
                    self.drive(ticket)?;
                }
            }
            Op::LongWrite => {
                self.write_blocks(key, u64::from(self.params.options.window_blocks) * 2 + 8)?;
            }
            Op::Unaligned => {
                let (offset, bytes) = self.byte_range(key);
                let mut data = Vec::new();
                while (data.len() as u64) < bytes {
                    let content = self.draw();
                    data.extend_from_slice(&self.model.contents.bytes(content)[..]);
                }
                self.change(key, offset, Change::Write(&data[..bytes as usize]))?;
            }
            Op::Trim => {
                let (offset, bytes) = self.byte_range(key);
                self.change(key, offset, Change::Trim(bytes))?;
            }
            Op::Zeroes => {
                let (offset, bytes) = self.byte_range(key);
                let keep = self.rng.percent(50);
                self.change(key, offset, Change::Zeroes(bytes, keep))?;
            }
            Op::LongTrim => {
                let blocks = self.blocks_of(key);
                let first = if self.rng.percent(50) { 0 } else { self.rng.below(blocks) };
                let n = if self.rng.percent(50) {
                    blocks - first
                } else {
                    self.rng.within(1, blocks - first)
                };
                self.change(key, first * BLOCK, Change::Trim(n * BLOCK))?;
            }
            Op::Read => {
                let (first, n) = self.block_range(key, READ_BLOCKS);
                self.read(key, &[(first, n)])?;
            }
            Op::Extents => {
                let (first, n) = self.block_range(key, u64::MAX);
                self.extents(key, first, n)?;
            }
            Op::Forge => self.forge(key)?,
            Op::Wrong => self.wrong(key)?,
            Op::Flush | Op::Idle | Op::Verb | Op::Clock => {}
        }
        Ok(())
    }

    fn draw(&mut self) -> Content {
        self.params.palette.draw(&mut self.model.contents, &mut self.rng)
    }

    /// A volume; of those that are only read, a snapshot too.
    fn any_volume(&mut self, read: bool) -> Option<Key> {
        let keys: Vec<Key> = if read {
            self.model.volumes().keys().copied().collect()
        } else {
            self.model.writable()
        };
        self.rng.pick(&keys).copied()
    }

    fn blocks_of(&self, key: Key) -> u64 {
        self.model.volumes().get(&key).map_or(1, |volume| volume.blocks)
    }

    /// Whole blocks where clients write.
    fn block_range(&mut self, key: Key, most: u64) -> (u64, u64) {
        let blocks = self.blocks_of(key);
        let (start, length) = self.rng.pick(&self.params.spots).copied().unwrap_or((0, 1));
        let start = start.min(blocks - 1);
        let length = length.min(blocks - start);
        let first = start + self.rng.below(length);
        (first, self.rng.within(1, most.min(start + length - first).max(1)))
    }

    /// Bytes where clients write, aligned or not.
    fn byte_range(&mut self, key: Key) -> (u64, u64) {
        let (first, n) = self.block_range(key, 5);
        if self.rng.percent(25) {
            return (first * BLOCK, n * BLOCK);
        }
        let skip = self.rng.below(BLOCK / 512) * 512
            + if self.rng.percent(30) { self.rng.below(512) } else { 0 };
        (first * BLOCK + skip, self.rng.within(1, n * BLOCK - skip))
    }

    fn write_blocks(&mut self, key: Key, most: u64) -> Flow<Option<u64>> {
        let (first, n) = self.block_range(key, most);
        let mut data = Vec::with_capacity((n * BLOCK) as usize);
        for _ in 0..n {
            let content = self.draw();
            data.extend_from_slice(&self.model.contents.bytes(content)[..]);
        }
        self.change(key, first * BLOCK, Change::Write(&data))
    }

    /// Changes a range of a volume; the ticket when it was taken, `None` when the store is full.
    pub(crate) fn change(
        &mut self,
        key: Key,
        offset: u64,
        change: Change<'_>,
    ) -> Flow<Option<u64>> {
        if !self.pin_edges(key, offset, change.bytes())? {
            return Ok(None);
        }
        let (mut tries, mut taken, mut rollbacks) = (0, 0, self.model.rollbacks());
        let mut holes = self.holes(key, offset, change);
        loop {
            // While it waited, a rollback may have put blocks below its edges of which the model
            // does not know what they hold: the snapshot was made of blocks in doubt.
            if self.model.rollbacks() != std::mem::replace(&mut rollbacks, self.model.rollbacks()) {
                if !self.pin_edges(key, offset, change.bytes())? {
                    return Ok(None);
                }
                holes = self.holes(key, offset, change);
            }
            // While it waited, the volume may have been rolled back to a smaller size.
            let reaches = |blocks: u64| offset + change.bytes() <= blocks * BLOCK;
            let volume = self.model.volumes().get(&key);
            let Some(id) = volume.filter(|volume| reaches(volume.blocks)).map(|volume| volume.id)
            else {
                return Ok(None);
            };
            let Some(store) = &self.store else { return Ok(None) };
            let before = taken;
            let result = match change {
                Change::Write(data) => store.write(id, offset, data, &mut taken),
                Change::Trim(bytes) => store.trim(id, offset, bytes),
                Change::Zeroes(bytes, keep) => {
                    store.write_zeroes(id, offset, bytes, keep, &mut taken)
                }
            };
            self.disk.fold(offset ^ change.bytes().rotate_left(40));
            self.say(|| {
                format!(
                    "{} of {} bytes at block {} + {}: {result:?}",
                    change.name(),
                    change.bytes(),
                    offset / BLOCK,
                    offset % BLOCK
                )
            });
            let outcome = match &result {
                Ok(Ticket(ticket)) => Outcome::Taken(*ticket),
                Err(_) => Outcome::Failed,
            };
            self.note(key, offset, change, outcome);
            self.note_durable()?;
            match result {
                Ok(Ticket(ticket)) => {
                    self.within_quota(key, &holes)?;
                    return Ok(Some(ticket));
                }
                Err(error) if error.kind() == Kind::Busy && !self.disk.is_down() => {
                    // A store that is nearly full takes a long write piece by piece.
                    tries = if taken > before { 1 } else { tries + 1 };
                    self.make_room(tries)?;
                }
                Err(error) => {
                    self.refused(key, offset, change, &error)?;
                    return Ok(None);
                }
            }
        }
    }

    /// Trims single blocks here and there, as many as are taken at once.
    pub(crate) fn trim_what_is_admitted(&mut self) -> Flow<()> {
        for n in 0..16 {
            let keys: Vec<Key> = self.model.writable();
            let Some(&key) = self.rng.pick(&keys) else { return Ok(()) };
            // Ranges that touch would become one.
            let lba = self.block_range(key, 1).0 & !1;
            let id = self.model.volumes().get(&key).map(|volume| volume.id);
            let (Some(store), Some(id)) = (&self.store, id) else { return Ok(()) };
            let result = store.trim(id, lba * BLOCK, BLOCK);
            self.say(|| format!("one trim at block {lba} of {key}: {result:?}"));
            let Ok(Ticket(ticket)) = result else { return Ok(()) };
            self.note(key, lba * BLOCK, Change::Trim(BLOCK), Outcome::Taken(ticket));
            self.note_durable()?;
            if n > 0 {
                self.reach.hit("clients trim whatever is admitted");
            }
        }
        Ok(())
    }

    /// Tells the model.
    fn note(&mut self, key: Key, offset: u64, change: Change<'_>, outcome: Outcome) {
        let end = offset + change.bytes();
        let whole = (offset.div_ceil(BLOCK), end / BLOCK);
        if !matches!(change, Change::Write(_)) {
            self.model.clear(key, whole.0, whole.1, outcome);
        }
        for lba in offset / BLOCK..end.div_ceil(BLOCK) {
            let inside = lba >= whole.0 && lba < whole.1;
            if match change {
                Change::Write(_) => false,
                Change::Trim(_) => inside || !S::TRIMS_EDGES,
                Change::Zeroes(..) => inside,
            } {
                continue;
            }
            let (from, to) = (offset.max(lba * BLOCK), end.min((lba + 1) * BLOCK));
            // Of what is lost no part is left beside what is written: no change has one as its edge.
            let before = Some(self.model.live(key, lba)[0]).filter(|&content| content != LOST);
            let mut bytes = **self.model.contents.bytes(before.unwrap_or(ZEROES));
            let part = &mut bytes[(from - lba * BLOCK) as usize..(to - lba * BLOCK) as usize];
            match change {
                Change::Write(data) => {
                    part.copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize])
                }
                Change::Trim(_) | Change::Zeroes(..) => part.fill(0),
            }
            let content = self.model.contents.intern(&bytes);
            self.model.write(key, lba, content, outcome);
            if !inside && content == ZEROES {
                self.model.zeroed_in_parts(key, lba);
            }
        }
    }

    /// Reads the partly covered blocks of a range when the model is in doubt about them; false when
    /// it still is: then what a write leaves there can't be foretold.
    fn pin_edges(&mut self, key: Key, offset: u64, bytes: u64) -> Flow<bool> {
        let end = offset + bytes;
        for (lba, partial) in [
            (offset / BLOCK, !offset.is_multiple_of(BLOCK)),
            (end / BLOCK, !end.is_multiple_of(BLOCK)),
        ] {
            if partial && (self.model.live(key, lba).len() > 1 || self.disk.damage() > 0) {
                self.read(key, &[(lba, 1)])?;
                if self.model.live(key, lba).len() > 1 {
                    return Ok(false);
                }
            }
            // A part of what is lost can't be written.
            if partial && self.model.may_be_lost(key, lba) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A request failed: either it explains itself, or the life ends.
    fn refused(&mut self, key: Key, offset: u64, change: Change<'_>, error: &Error) -> Flow<()> {
        if error.kind() != Kind::NoSpace || self.disk.is_down() || self.disk.has_failed() {
            return Err(self.judge(change.name(), error));
        }
        if is_of_domain(error) {
            return self.refused_by_domain(key, offset, change);
        }
        if is_of_quota(error) {
            return self.refused_by_quota(key, offset, change);
        }
        self.reach.hit("store full");
        if matches!(change, Change::Write(_)) {
            self.not_reserved(key)?;
        }
        let first = offset / BLOCK;
        let n = (offset + change.bytes()).div_ceil(BLOCK) - first;
        if let Change::Write(data) = change {
            self.read(key, &[(first, n)])?;
            let host = self.params.profile == Profile::HostFull;
            let nearly_empty = self.model.distinct() + n < S::roomy(&self.params.options);
            if nearly_empty && !host {
                let rollbacks = self.model.rollbacks();
                self.idle()?;
                // A rollback that was performed meanwhile has put another map below it.
                if self.model.rollbacks() == rollbacks {
                    self.must_fit(key, offset, data)?;
                }
            } else if matches!(self.params.profile, Profile::FullStore | Profile::Churn)
                && self.rng.percent(30)
            {
                self.trim_and_write_again()?;
            }
            return Ok(());
        }
        // The edges of a trim are writes, which a full store refuses.
        if offset.is_multiple_of(BLOCK) && change.bytes().is_multiple_of(BLOCK) {
            let message = format!("a full store refuses a {}: {error:?}", change.name());
            return Err(Failure::new(Checker::SpaceReserved, message).into());
        }
        Ok(())
    }

    /// A write to a store with so much room that it must be taken.
    fn must_fit(&mut self, key: Key, offset: u64, data: &[u8]) -> Flow<()> {
        let Some(id) = self.model.volumes().get(&key).map(|volume| volume.id) else {
            return Ok(());
        };
        let (mut tries, mut taken) = (0, 0);
        loop {
            let Some(store) = &self.store else { return Ok(()) };
            match store.write(id, offset, data, &mut taken) {
                Ok(Ticket(ticket)) => {
                    self.note(key, offset, Change::Write(data), Outcome::Taken(ticket));
                    return Ok(());
                }
                Err(error) if error.kind() == Kind::Busy => {
                    self.note(key, offset, Change::Write(data), Outcome::Failed);
                    tries += 1;
                    self.make_room(tries)?;
                }
                Err(error) if is_of_domain(&error) => {
                    self.note(key, offset, Change::Write(data), Outcome::Failed);
                    return self.refused_by_domain(key, offset, Change::Write(data));
                }
                Err(error) if is_of_quota(&error) => {
                    self.note(key, offset, Change::Write(data), Outcome::Failed);
                    return self.refused_by_quota(key, offset, Change::Write(data));
                }
                Err(error) if error.kind() == Kind::NoSpace && !self.disk.has_failed() => {
                    let message = format!(
                        "{} different blocks are live of {}, and yet: {error:?}",
                        self.model.distinct(),
                        self.disk_blocks()
                    );
                    return Err(Failure::new(Checker::SpaceReserved, message).into());
                }
                Err(error) => {
                    self.note(key, offset, Change::Write(data), Outcome::Failed);
                    return Err(self.judge("write", &error));
                }
            }
        }
    }

    fn disk_blocks(&self) -> u64 {
        self.params.options.disk_blocks
    }

    /// A full store becomes writable when enough is trimmed.
    fn trim_and_write_again(&mut self) -> Flow<()> {
        self.reach.hit("store full: trimmed and written again");
        let keys: Vec<Key> = self.model.writable();
        for &key in &keys {
            let bytes = self.blocks_of(key) * BLOCK;
            self.change(key, 0, Change::Trim(bytes))?;
        }
        self.idle()?;
        let (Some(&key), true) =
            (keys.first(), self.model.distinct() < S::roomy(&self.params.options))
        else {
            return Ok(());
        };
        let (first, n) = self.block_range(key, 8);
        let mut data = vec![0; (n * BLOCK) as usize];
        self.rng.fill(&mut data);
        self.must_fit(key, first * BLOCK, &data)
    }

    /// Reads block ranges and compares.
    pub(crate) fn read(&mut self, key: Key, ranges: &[(u64, u64)]) -> Flow<()> {
        let Some(id) = self.model.volumes().get(&key).map(|volume| volume.id) else {
            return Ok(());
        };
        let Some(store) = &self.store else { return Ok(()) };
        let total: u64 = ranges.iter().map(|range| range.1).sum();
        let mut blocks = Block::zeroed_vec(total as usize);
        blocks.iter_mut().for_each(|block| block.0.fill(0xee));
        let mut reads = Vec::with_capacity(ranges.len());
        let mut rest = &mut blocks[..];
        for &(first, n) in ranges {
            let (into, left) = rest.split_at_mut(n as usize);
            rest = left;
            reads.push(BlockRead { first: Lba(first), into, result: Ok(()) });
        }
        self.disk.forget_reads();
        store.read(id, &mut reads);
        let explained = self.disk.met_damage();
        let seen: Vec<(u64, u64, Option<Error>)> = reads
            .into_iter()
            .map(|read| (read.first.0, read.into.len() as u64, read.result.err()))
            .collect();
        let mut at = 0;
        for (first, n, error) in seen {
            match error {
                None => {
                    for (lba, block) in (first..).zip(&blocks[at..at + n as usize]) {
                        self.model.observe(key, lba, &block.0)?;
                    }
                }
                Some(error) => self.unreadable(key, (first, n), &error, explained)?,
            }
            at += n as usize;
        }
        Ok(())
    }

    /// A read failed: right only when it met damage or a fault (`explained`), and its other blocks
    /// are still there.
    fn unreadable(
        &mut self,
        key: Key,
        (first, n): (u64, u64),
        error: &Error,
        explained: bool,
    ) -> Flow<()> {
        if self.disk.is_down() {
            return Err(self.judge("read", error));
        }
        let lost = (first..first + n).any(|lba| self.model.may_be_lost(key, lba));
        if !explained && !lost {
            let message = format!("blocks {first}..{} can't be read: {error:?}", first + n);
            return Err(Failure::new(Checker::DurableSurvives, message).into());
        }
        self.reach.hit(if explained { "damage: read refused" } else { "lost: read refused" });
        let transient = self.disk.met_transient();
        if n > 1 {
            let ones: Vec<(u64, u64)> = (first..first + n).map(|lba| (lba, 1)).collect();
            let before = self.refused_reads;
            self.disk.forget_transient();
            self.read(key, &ones)?;
            if self.refused_reads == before && !self.disk.met_transient() && !transient {
                let message = format!(
                    "blocks {first}..{} can't be read together, and each of them can alone: {error:?}",
                    first + n
                );
                return Err(Failure::new(Checker::DamageSpreads, message).into());
            }
        } else {
            if !explained {
                self.model.observe_lost(key, first);
            }
            self.refused_reads += 1;
        }
        Ok(())
    }

    /// Reads all that was ever touched, and a little of what was not.
    pub(crate) fn verify(&mut self) -> Flow<()> {
        let keys: Vec<Key> = self.model.volumes().keys().copied().collect();
        for key in keys {
            let mut ranges: Vec<(u64, u64)> = Vec::new();
            for lba in self.model.touched(key) {
                match ranges.last_mut() {
                    Some((first, n)) if *first + *n == lba && *n < READ_BLOCKS => *n += 1,
                    _ => ranges.push((lba, 1)),
                }
            }
            ranges.push((self.rng.below(self.blocks_of(key)), 1));
            self.read(key, &ranges)?;
        }
        Ok(())
    }

    /// Asks for extents and compares them with the content.
    fn extents(&mut self, key: Key, first: u64, n: u64) -> Flow<()> {
        let Some(id) = self.model.volumes().get(&key).map(|volume| volume.id) else {
            return Ok(());
        };
        let Some(store) = &self.store else { return Ok(()) };
        let limit = self.rng.within(1, 40) as usize;
        let extents = match store.extents(id, first * BLOCK, n * BLOCK, limit) {
            Ok(extents) => extents,
            Err(error) => return Err(self.judge("extents", &error)),
        };
        let fail = |message: String| Err(Failure::new(Checker::Extents, message).into());
        let sum: u64 = extents.iter().map(|extent| extent.bytes).sum();
        let apart = extents.windows(2).all(|pair| pair[0].kind != pair[1].kind);
        if extents.is_empty()
            || extents.len() > limit
            || sum > n * BLOCK
            || !apart
            || extents.iter().any(|extent| extent.bytes == 0)
        {
            return fail(format!("extents of {n} blocks at {first}, at most {limit}: {extents:?}"));
        }
        let mut from = first * BLOCK;
        for extent in extents {
            let to = from + extent.bytes;
            if extent.kind != ExtentKind::Data {
                for lba in self
                    .model
                    .touched(key)
                    .into_iter()
                    .filter(|lba| lba * BLOCK >= from && (lba + 1) * BLOCK <= to)
                {
                    if !self.model.live(key, lba).contains(&ZEROES) && self.disk.damage() == 0 {
                        return fail(format!(
                            "block {lba} is said to be a {:?} and holds data",
                            extent.kind
                        ));
                    }
                }
            }
            from = to;
        }
        Ok(())
    }

    /// A client writes what looks like the store's own metadata: made with all that a client can
    /// know, or copied from the disk.
    fn forge(&mut self, key: Key) -> Flow<()> {
        let Some(id) = self.model.volumes().get(&key).map(|volume| volume.id) else {
            return Ok(());
        };
        let (first, _) = self.block_range(key, 1);
        let bytes = match S::forge(&self.disk, &self.params.options, id, Lba(first), &mut self.rng)
        {
            Some(block) if self.rng.percent(80) => block.0,
            _ => {
                let view = self.disk.view();
                let written: Vec<u64> = view.written().collect();
                let Some(bytes) = self.rng.pick(&written).and_then(|&at| view.get(at)) else {
                    return Ok(());
                };
                if let Some(secrets) = &mut self.secrets {
                    secrets.copied(bytes);
                }
                **bytes
            }
        };
        self.reach.hit("client forges metadata");
        let (at, _) = self.block_range(key, 1);
        self.change(key, at * BLOCK, Change::Write(&bytes))?;
        Ok(())
    }

    /// Requests that must be refused and change nothing.
    fn wrong(&mut self, key: Key) -> Flow<()> {
        let Some(id) = self.model.volumes().get(&key).map(|volume| volume.id) else {
            return Ok(());
        };
        let Some(store) = &self.store else { return Ok(()) };
        let end = self.blocks_of(key) * BLOCK;
        let results = [
            store.write(id, end - 1, &[1; 2], &mut 0),
            store.write(id, u64::MAX - 3, &[1; 8], &mut 0),
            store.trim(id, end, 1),
            store.trim(id, 512, u64::MAX - 100),
            store.write_zeroes(id, end - BLOCK, BLOCK + 1, true, &mut 0),
        ];
        match results.into_iter().position(|result| result.is_ok()) {
            Some(which) => Err(Failure::new(
                Checker::Unexplained,
                format!("request {which} beyond the end of the volume was taken"),
            )
            .into()),
            None => Ok(()),
        }
    }
}
