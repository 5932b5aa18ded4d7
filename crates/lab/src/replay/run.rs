//! The events of a replay, one after the other.

use std::{sync::Arc, time::Duration};

use onefold_block::{
    Persistence,
    schedule::{Rounds, Unflushed, WriteBack},
};
use onefold_core::{Block, Clock, Error, Kind, Lba, Result};
use onefold_testbed::VirtualClock;

use super::{
    oracle::Oracle,
    outcome::{Latency, Outcome, Phase},
    plan::{Plan, Speed},
};
use crate::{
    device::{Counts, Device},
    request::{Request, What},
    subject::{Subject, Tally},
};

/// How often the product's background thread looks for work.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Tries to make room before a store counts as full.
const ROOM_TRIES: u32 = 64;

/// Addresses that are read at the end when nobody says how many.
const VERIFIED_USUALLY: u64 = 250_000;

/// Somebody who waits for a round.
#[derive(Clone, Copy)]
struct Waiter {
    came: Duration,
    flush: bool,
}

/// A round whose work the device has.
struct Round {
    ends: Duration,
    answers: Vec<Waiter>,
    /// Blocks that are durable then.
    blocks: usize,
}

/// All counts at one moment.
#[derive(Clone, Copy, Default)]
struct Mark {
    device: Counts,
    tally: Tally,
    client: u64,
    ideal: u64,
    now: Duration,
}

pub(super) struct Run<'a> {
    plan: &'a Plan,
    clock: Arc<VirtualClock>,
    device: Arc<Device>,
    subject: Box<dyn Subject>,
    oracle: Oracle,
    /// When the last request came, as the trace and as virtual time tell it.
    last_at: Duration,
    last_came: Duration,
    rounds: Rounds,
    waiting: Vec<Waiter>,
    /// When the next round begins, if somebody wants one and none is under way.
    begins: Option<Duration>,
    /// A flush that requests wait for.
    barrier: bool,
    round: Option<Round>,
    /// Blocks gathered since the last round began, and since the beginning.
    gathered: usize,
    taken: u64,
    write_back: WriteBack,
    /// When the background looks for work next.
    looks: Option<Duration>,
    start: Mark,
    /// Still warming up.
    warming: bool,
    phase: (String, Mark),
    phases: Vec<Phase>,
    writes: Vec<u64>,
    flushes: Vec<u64>,
    buffer: Vec<Block>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        clock: Arc<VirtualClock>,
        device: Arc<Device>,
        subject: Box<dyn Subject>,
    ) -> Run<'a> {
        let now = clock.now();
        let mut run = Run {
            plan,
            clock,
            device,
            subject,
            oracle: Oracle::default(),
            last_at: Duration::ZERO,
            last_came: now,
            rounds: Rounds::new(plan.anticipation),
            waiting: Vec::new(),
            begins: None,
            barrier: false,
            round: None,
            gathered: 0,
            taken: 0,
            write_back: WriteBack::default(),
            looks: Some(now),
            start: Mark::default(),
            warming: plan.warm_up_blocks > 0,
            phase: (String::new(), Mark::default()),
            phases: Vec::new(),
            writes: Vec::new(),
            flushes: Vec::new(),
            buffer: Vec::new(),
        };
        run.start = run.mark();
        run.phase.1 = run.start;
        run
    }

    fn mark(&self) -> Mark {
        Mark {
            device: self.device.counts(),
            tally: self.subject.tally(),
            client: self.oracle.client,
            ideal: self.oracle.ideal,
            now: self.clock.now(),
        }
    }

    /// Lets a request come, and everything happen that happens before.
    pub(super) fn request(&mut self, request: &Request) -> Result<()> {
        if self.warming && self.oracle.client >= self.plan.warm_up_blocks {
            self.end_warm_up()?;
        }
        let gap = match self.plan.speed {
            Speed::Max => Duration::ZERO,
            Speed::Times(times) => request.at.saturating_sub(self.last_at).div_f64(times),
        };
        self.last_at = request.at;
        if let What::Phase(name) = &request.what {
            // Its gap belongs to the phase before.
            self.pass(self.last_came + gap)?;
            self.last_came = self.clock.now();
            self.end_phase(name);
            return Ok(());
        }
        while self.barrier {
            self.next_event()?;
            self.last_came = self.clock.now();
        }
        self.pass(self.last_came + gap)?;
        while self.in_flight() >= self.plan.clients.in_flight {
            self.next_event()?;
        }
        let now = self.clock.now();
        self.rounds.requested(now - self.last_came);
        self.last_came = now;
        self.subject.requested();
        self.looks.get_or_insert(now + LOOK_EVERY);
        self.oracle.note(&request.what);
        self.take(request, now)
    }

    fn take(&mut self, request: &Request, came: Duration) -> Result<()> {
        match &request.what {
            What::Write { first, blocks, fua } => {
                let mut buffer = std::mem::take(&mut self.buffer);
                if buffer.len() < blocks.len() {
                    buffer = Block::zeroed_vec(blocks.len());
                }
                blocks.iter().zip(&mut buffer).for_each(|(content, block)| content.fill(block));
                self.write(*first, &buffer[..blocks.len()])?;
                self.buffer = buffer;
                if *fua || self.plan.choice.persistence == Persistence::Strong {
                    self.wait(Waiter { came, flush: false });
                } else {
                    self.writes.push((self.clock.now() - came).as_nanos() as u64);
                    self.subject.write_out()?;
                }
            }
            What::Trim { first, blocks } => self.drop_blocks(*first, *blocks, false)?,
            What::Zeroes { first, blocks } => self.drop_blocks(*first, *blocks, true)?,
            What::Flush
                if self.gathered == 0 && self.round.is_none() && self.waiting.is_empty() =>
            {
                self.flushes.push(0)
            }
            What::Flush => {
                self.barrier = self.plan.clients.wait_for_flush;
                self.wait(Waiter { came, flush: true });
            }
            What::Phase(_) => {}
        }
        Ok(())
    }

    fn write(&mut self, first: Lba, blocks: &[Block]) -> Result<()> {
        let limit = self.subject.unflushed_blocks();
        while self.undurable() + blocks.len() > limit && self.undurable() > 0 {
            self.hurry()?;
        }
        let mut taken = 0;
        let mut tries = 0;
        while let Err(error) = self.subject.write(first, blocks, &mut taken) {
            tries = self.make_room(error, tries)?;
        }
        self.gathered += blocks.len();
        self.taken += blocks.len() as u64;
        if self.round.is_none() && self.flushes_at().is_some_and(|at| at <= self.clock.now()) {
            self.begin_round()?;
        }
        Ok(())
    }

    fn drop_blocks(&mut self, first: Lba, blocks: u64, keep_zeroes: bool) -> Result<()> {
        let mut tries = 0;
        while let Err(error) = self.subject.drop_blocks(first, blocks, keep_zeroes) {
            tries = self.make_room(error, tries)?;
        }
        self.gathered += 1;
        self.taken += 1;
        Ok(())
    }

    /// The subject is busy: clients wait until it has made room.
    fn make_room(&mut self, error: Error, tries: u32) -> Result<u32> {
        if error.kind() != Kind::Busy || tries == ROOM_TRIES {
            return Err(error);
        }
        self.subject.make_room()?;
        let ends = self.device.busy_until();
        self.pass(ends)?;
        Ok(tries + 1)
    }

    /// Blocks that were taken and are not durable.
    fn undurable(&self) -> usize {
        self.gathered + self.round.as_ref().map_or(0, |round| round.blocks)
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.round.as_ref().map_or(0, |round| round.answers.len())
    }

    /// Somebody waits for a round.
    fn wait(&mut self, waiter: Waiter) {
        if let Some(round) = self.round.as_mut().filter(|_| self.gathered == 0) {
            // All that it waits for is under way.
            round.answers.push(waiter);
            return;
        }
        self.waiting.push(waiter);
        if self.round.is_none() {
            self.anticipate(self.waiting.len() == 1);
        }
    }

    /// Decides when the next round begins. A full window waits for nobody.
    fn anticipate(&mut self, first: bool) {
        let (now, waiting) = (self.clock.now(), self.waiting.len());
        let closes = match first {
            true => self.rounds.wanted(now, waiting),
            false => self.rounds.joined(now, waiting),
        };
        let full = self.gathered >= self.subject.window_blocks();
        self.begins = Some(if full { now } else { closes });
    }

    /// When the writer flushes what nobody waits for.
    fn flushes_at(&mut self) -> Option<Duration> {
        let unflushed = Unflushed {
            newest: self.taken,
            durable: self.taken - self.undurable() as u64,
            blocks: self.undurable(),
            most: self.subject.unflushed_blocks(),
            pressure: false,
        };
        self.write_back.next(self.clock.now(), &unflushed)
    }

    /// Hands everything gathered to the device, for all who wait.
    fn begin_round(&mut self) -> Result<()> {
        self.begins = None;
        self.subject.commit()?;
        let ends = self.device.busy_until();
        self.rounds.ended(self.waiting.len());
        self.round = Some(Round {
            ends,
            answers: std::mem::take(&mut self.waiting),
            blocks: std::mem::take(&mut self.gathered),
        });
        // Behind the round, so that nobody who waits for it waits for that.
        self.look()
    }

    fn end_round(&mut self) {
        let Some(round) = self.round.take() else { return };
        let now = self.clock.now();
        for waiter in round.answers {
            let took = (now - waiter.came).as_nanos() as u64;
            if waiter.flush {
                self.flushes.push(took);
                self.barrier = false;
            } else {
                self.writes.push(took);
            }
        }
        if !self.waiting.is_empty() {
            self.anticipate(true);
        }
    }

    /// Waits for the round that is under way, or begins one.
    fn hurry(&mut self) -> Result<()> {
        match &self.round {
            Some(round) => {
                let ends = round.ends;
                self.pass(ends)
            }
            None => self.begin_round(),
        }
    }

    /// When the next thing happens by itself.
    fn next_time(&mut self) -> Option<(Duration, Happening)> {
        let round = self.round.as_ref().map(|round| (round.ends, Happening::RoundEnds));
        // The writer waits for a round that is under way.
        let flush = if round.is_none() { self.flushes_at() } else { None };
        let begins = [self.begins, flush].into_iter().flatten().min();
        let begins = begins.map(|at| (at.max(self.clock.now()), Happening::RoundBegins));
        let looks = self.looks.map(|at| (at, Happening::Look));
        [round, begins, looks].into_iter().flatten().min_by_key(|&(at, _)| at)
    }

    /// Goes to the next thing that happens by itself.
    fn next_event(&mut self) -> Result<()> {
        // Somebody waits and nothing else happens by itself: a round begins now.
        let (at, what) = self.next_time().unwrap_or((self.clock.now(), Happening::RoundBegins));
        self.clock.advance_to(at);
        match what {
            Happening::RoundEnds => {
                self.end_round();
                Ok(())
            }
            Happening::RoundBegins => self.begin_round(),
            Happening::Look => self.look(),
        }
    }

    /// Lets time pass until `then`, with everything that happens before. A round that would begin
    /// just then waits: what comes at the same moment takes part.
    fn pass(&mut self, then: Duration) -> Result<()> {
        while let Some((at, what)) = self.next_time()
            && (at < then || at == then && matches!(what, Happening::RoundEnds))
        {
            self.next_event()?;
        }
        self.clock.advance_to(then);
        Ok(())
    }

    /// Lets the background do what is due. Its thread makes one step of idle work at a time, each
    /// when the device is done with the one before.
    fn look(&mut self) -> Result<()> {
        let at = self.subject.background()?;
        self.looks = at.map(|at| at.max(self.device.busy_until()));
        Ok(())
    }

    /// Lets everything be answered and durable.
    fn drain(&mut self) -> Result<()> {
        if self.gathered > 0 && self.round.is_none() && self.waiting.is_empty() {
            self.begin_round()?;
        }
        while self.undurable() > 0 || self.in_flight() > 0 {
            if self.round.is_none() && self.begins.is_none() {
                self.begin_round()?;
            }
            self.next_event()?;
        }
        Ok(())
    }

    /// From here on everything counts; what the warm-up left is in the tables.
    fn end_warm_up(&mut self) -> Result<()> {
        self.drain()?;
        self.subject.finish()?;
        let settled = self.device.busy_until();
        self.pass(settled)?;
        self.warming = false;
        self.last_came = self.clock.now();
        self.start = self.mark();
        self.phase.1 = self.start;
        self.phases.clear();
        self.writes.clear();
        self.flushes.clear();
        Ok(())
    }

    fn end_phase(&mut self, next: &str) {
        let now = self.mark();
        let (name, then) = std::mem::replace(&mut self.phase, (next.to_owned(), now));
        if !name.is_empty() || now.client > then.client {
            self.phases.push(Phase {
                name,
                client_blocks: now.client - then.client,
                device_blocks: now.device.since(&then.device).written(),
                ideal_blocks: now.ideal - then.ideal,
                checkpoint_blocks: now.tally.since(&then.tally).checkpoint_blocks,
                flushes: now.device.since(&then.device).flushes,
                virtual_seconds: (now.now - then.now).as_secs_f64(),
            });
        }
    }

    /// The last request came: everything is answered, made durable, carried into the tables and
    /// verified.
    pub(super) fn end(mut self) -> Result<Outcome> {
        self.drain()?;
        let answered = self.clock.now();
        self.end_phase("");
        self.subject.finish()?;
        let settled = self.device.busy_until();
        self.clock.advance_to(settled);
        let end = self.mark();
        let verified_blocks = self.verify()?;
        let (data_zones, carrier_zones) = self.device.zones();
        let (device, tally) =
            (end.device.since(&self.start.device), end.tally.since(&self.start.tally));
        Ok(Outcome {
            client_blocks: end.client - self.start.client,
            device_blocks: device.written(),
            ideal_blocks: end.ideal - self.start.ideal,
            metadata_blocks: device.table_blocks + device.super_blocks + tally.record_blocks,
            flushes: device.flushes,
            windows: tally.windows,
            duplicate_blocks: tally.duplicate_blocks,
            hidden_records: tally.hidden_records,
            records: tally.records,
            checkpoint_blocks: tally.checkpoint_blocks,
            virtual_seconds: (answered - self.start.now).as_secs_f64(),
            settle_seconds: (settled - answered).as_secs_f64(),
            zero_blocks: tally.zero_blocks,
            live_blocks: self.oracle.live_blocks(),
            live_contents: self.oracle.live_contents(),
            stored_blocks: self.subject.stored_blocks(),
            verified_blocks,
            wall_seconds: 0.0,
            cut_off: false,
            device_counts: device,
            data_zones,
            carrier_zones,
            tally,
            write_latency: Latency::of(self.writes),
            flush_latency: Latency::of(self.flushes),
            phases: self.phases,
        })
    }

    /// Reads blocks back, and compares them with what was written.
    fn verify(&self) -> Result<u64> {
        let sample = match self.plan.verify {
            Some(0) => return Ok(0),
            most => self.oracle.sample(most.unwrap_or(VERIFIED_USUALLY)),
        };
        let mut block = Block::zeroed_vec(1);
        for (lba, content) in &sample {
            self.subject.read(*lba, &mut block)?;
            if !content.is_in(&block[0]) {
                return Err(Error::new(
                    Kind::Corrupt,
                    format!(
                        "block {lba} reads back with a content that was not written there last"
                    ),
                ));
            }
        }
        Ok(sample.len() as u64)
    }
}

#[derive(Clone, Copy)]
enum Happening {
    RoundEnds,
    RoundBegins,
    Look,
}
