//! The events of a replay, one after the other.

use std::{sync::Arc, time::Duration};

use onefold_block::Persistence;
use onefold_core::{Block, Clock, Error, Kind, Lba, Result};

use super::{
    oracle::Oracle,
    outcome::{Latency, Outcome, Phase},
    plan::{Anticipation, Plan, Speed},
};
use crate::{
    VirtualClock,
    device::{Counts, Device},
    request::{Request, What},
    subject::{Idleness, Subject, Tally},
};

/// With weak persistence a change is durable about this long after it was made; the product's.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// How often background work is looked for.
const TICK: Duration = Duration::from_millis(250);

/// Quiet for so long, the store is idle, and tidies up; the product's.
const QUIET_SHORT: Duration = Duration::from_millis(500);
const QUIET_LONG: Duration = Duration::from_secs(5);

/// Quiet for so long, everything is done that time alone brings, and ticks can be skipped.
const QUIET_ALL: Duration = Duration::from_secs(60);

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
    /// Mean time between requests lately.
    interval: Duration,
    waiting: Vec<Waiter>,
    /// When the next round begins, if somebody wants one and none is under way.
    begins: Option<Duration>,
    /// Since when it is wanted.
    wanted: Duration,
    /// A flush that requests wait for.
    barrier: bool,
    round: Option<Round>,
    /// Answers of the last round.
    together: usize,
    /// Blocks gathered since the last round began.
    gathered: usize,
    /// When the last round began.
    flushed: Duration,
    next_tick: Duration,
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
            interval: Duration::from_secs(1),
            waiting: Vec::new(),
            begins: None,
            wanted: now,
            barrier: false,
            round: None,
            together: 0,
            gathered: 0,
            flushed: now,
            next_tick: now + TICK,
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
        self.interval =
            (self.interval * 7 + (now - self.last_came).min(Duration::from_secs(1))) / 8;
        self.last_came = now;
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
        // As the product does: it flushes long before clients must wait.
        if self.undurable() * 2 > limit && self.round.is_none() {
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
        Ok(())
    }

    /// The subject is busy: clients wait until it has made room.
    fn make_room(&mut self, error: Error, tries: u32) -> Result<u32> {
        if error.kind() != Kind::Busy || tries == ROOM_TRIES {
            return Err(error);
        }
        self.subject.make_room()?;
        self.subject.background(Idleness::No)?;
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
        let now = self.clock.now();
        if self.waiting.len() == 1 {
            self.wanted = now;
        }
        if self.round.is_none() {
            self.anticipate(now);
        }
    }

    /// Decides when the next round begins.
    fn anticipate(&mut self, now: Duration) {
        let full = self.gathered >= self.subject.window_blocks();
        self.begins = Some(match self.plan.anticipation {
            _ if full => now,
            Anticipation::None => now,
            Anticipation::Returning if self.together <= self.waiting.len() + 1 => now,
            Anticipation::Returning => (now + Duration::from_micros(30))
                .min((self.wanted + Duration::from_millis(1)).max(now)),
            Anticipation::Idle(idle) if self.interval < idle => (self.wanted + idle).max(now),
            Anticipation::Idle(_) => now,
        });
    }

    /// Hands everything gathered to the device, for all who wait.
    fn begin_round(&mut self) -> Result<()> {
        self.begins = None;
        self.flushed = self.clock.now();
        self.subject.commit()?;
        let ends = self.device.busy_until();
        self.together = self.waiting.len();
        self.round = Some(Round {
            ends,
            answers: std::mem::take(&mut self.waiting),
            blocks: std::mem::take(&mut self.gathered),
        });
        // Behind the round, so that nobody who waits for it waits for that.
        self.subject.background(Idleness::No)
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
            self.wanted = now;
            self.anticipate(now);
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
    fn next_time(&self) -> (Duration, Happening) {
        let round = self.round.as_ref().map(|round| (round.ends, Happening::RoundEnds));
        let begins = self.begins.map(|at| (at, Happening::RoundBegins));
        let tick = Some((self.next_tick, Happening::Tick));
        [round, begins, tick]
            .into_iter()
            .flatten()
            .min_by_key(|&(at, _)| at)
            .unwrap_or((self.next_tick, Happening::Tick))
    }

    /// Goes to the next thing that happens by itself.
    fn next_event(&mut self) -> Result<()> {
        let (at, what) = self.next_time();
        self.clock.advance_to(at);
        match what {
            Happening::RoundEnds => self.end_round(),
            Happening::RoundBegins => self.begin_round()?,
            Happening::Tick => self.tick()?,
        }
        Ok(())
    }

    /// Lets time pass until `then`, with everything that happens before. A round that would begin
    /// just then waits: what comes at the same moment takes part.
    fn pass(&mut self, then: Duration) -> Result<()> {
        while let (at, what) = self.next_time()
            && (at < then || at == then && matches!(what, Happening::RoundEnds))
        {
            self.next_event()?;
        }
        self.clock.advance_to(then);
        Ok(())
    }

    fn tick(&mut self) -> Result<()> {
        let now = self.clock.now();
        let quiet = now.saturating_sub(self.last_came);
        self.next_tick = now + if quiet > QUIET_ALL { QUIET_ALL } else { TICK };
        if self.round.is_none() && self.gathered > 0 && now - self.flushed >= FLUSH_EVERY {
            self.begin_round()?;
        }
        let quiet = match quiet {
            _ if self.undurable() > 0 => Idleness::No,
            quiet if quiet >= QUIET_LONG => Idleness::Long,
            quiet if quiet >= QUIET_SHORT => Idleness::Short,
            _ => Idleness::No,
        };
        self.subject.background(quiet)
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

    /// The last request came: everything is answered, settled and verified.
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
    Tick,
}
