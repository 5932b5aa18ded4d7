//! Two and more engines on one simulated medium: every order in which their steps and the ticks of
//! a clock can come, for small times.

use std::{collections::HashSet, sync::Arc};

use onefold_core::{
    Block, BlockRead, Class, Clock, Disk, Kind, Lba, Pba, Read, Result, Run, VolumeId,
};
use parking_lot::Mutex;

use super::*;
use crate::{
    Engine, Format, Settings,
    check::check,
    format::claim::{CLAIM_AT, Claim, Claimant, State},
};

const fn ticks(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The rule's times, made as small as they can be: what must be longer than something else is so by
/// one tick.
const SMALL: Times = Times {
    renew: ticks(1),
    lasts: ticks(3),
    unseeing: ticks(1),
    watch: ticks(2),
    confirm: ticks(2),
    settle: ticks(1),
    glance: ticks(2),
    swift: ticks(0),
};

#[derive(Clone, PartialEq, Eq, Hash)]
enum Part {
    Taking(Taker),
    Holding(Holder),
    Gone,
}

/// An action that an actor has begun and not finished.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Begun {
    Nothing,
    Look,
    Found { asked: Duration, claim: Option<Claim> },
    Written,
    Sleep { until: Duration },
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Actor {
    part: Part,
    begun: Begun,
    tokens: u8,
    /// The actor may be killed and started again once.
    restarts: bool,
    machine: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    now: Duration,
    medium: Option<Claim>,
    actors: Vec<Actor>,
    /// The last winner.
    owner: Option<usize>,
}

fn claimant(machine: u8) -> Claimant {
    Claimant {
        host: String::new(),
        machine: [machine; 16],
        boot: [machine; 16],
        pid: 1,
        device: 1,
        inode: 1,
    }
}

fn claim(machine: u8, token: u8, state: State) -> Claim {
    Claim { store: [9; 16], token: [token; 16], claimant: claimant(machine), state }
}

fn block(claim: Option<&Claim>) -> Box<Block> {
    claim.map_or_else(Block::zeroed, Claim::encode)
}

fn taker(machine: u8, token: u8) -> Actor {
    let part = Part::Taking(Taker::new([9; 16], claimant(machine), [token; 16], Place::Shared));
    Actor { part, begun: Begun::Nothing, tokens: token, restarts: false, machine }
}

fn holder(machine: u8, token: u8) -> Actor {
    let part =
        Part::Holding(Holder::new(claim(machine, token, State::Held), ticks(0), Place::Shared));
    Actor { part, begun: Begun::Nothing, tokens: token, restarts: false, machine }
}

impl World {
    fn new(medium: Option<Claim>, actors: Vec<Actor>) -> World {
        let owner = actors.iter().position(|actor| matches!(actor.part, Part::Holding(_)));
        World { now: ticks(0), medium, actors, owner }
    }

    /// One step of an actor; `None` when it waits for the clock, or has ended. Between two of them
    /// it may sleep: before and after a read, and after a write. (Asleep between its last
    /// thought and the write itself is as asleep before that thought.)
    fn step(&self, times: &Times, n: usize) -> Option<World> {
        let mut next = self.clone();
        let (now, World { medium, actors, owner, .. }) = (self.now, &mut next);
        let actor = &mut actors[n];
        match (&mut actor.part, std::mem::replace(&mut actor.begun, Begun::Nothing)) {
            (Part::Gone, _) => return None,
            (_, Begun::Look) => actor.begun = Begun::Found { asked: now, claim: medium.clone() },
            (_, Begun::Sleep { until }) if now < until => return None,
            (Part::Taking(taker), begun) => {
                let action = match begun {
                    Begun::Found { asked, claim } => {
                        taker.step(times, now, Event::Seen { asked, block: &block(claim.as_ref()) })
                    }
                    Begun::Written => taker.step(times, now, Event::Written),
                    _ => taker.step(times, now, Event::Awake),
                };
                actor.act(action, now, n, medium, owner);
            }
            (Part::Holding(holder), begun) => {
                let well = match begun {
                    Begun::Found { asked, claim } => {
                        holder.seen(asked, &block(claim.as_ref())).map(|()| {
                            actor.tokens += 1;
                            *medium =
                                Claim::decode(&holder.renewal([actor.tokens; 16], State::Held));
                            actor.begun = Begun::Written;
                        })
                    }
                    Begun::Written => holder
                        .wrote(times, now)
                        .map(|()| actor.begun = Begun::Sleep { until: now + times.renew }),
                    _ => {
                        actor.begun = Begun::Look;
                        Ok(())
                    }
                };
                if well.is_err() {
                    actor.part = Part::Gone;
                }
            }
        }
        Some(next)
    }

    /// Somebody who is not the last winner may still submit.
    fn is_unsafe(&self, times: &Times) -> bool {
        self.actors.iter().enumerate().any(|(n, actor)| {
            matches!(&actor.part, Part::Holding(holder) if holder.sees(times, self.now))
                && self.owner != Some(n)
        })
    }

    fn after(&self, times: &Times) -> Vec<World> {
        let mut all: Vec<World> =
            (0..self.actors.len()).filter_map(|n| self.step(times, n)).collect();
        all.push(World { now: self.now + ticks(1), ..self.clone() });
        for (n, actor) in self
            .actors
            .iter()
            .enumerate()
            .filter(|(_, actor)| actor.restarts && matches!(actor.part, Part::Taking(_)))
        {
            let mut next = self.clone();
            next.actors[n] = taker(actor.machine, actor.tokens + 1);
            all.push(next);
        }
        all
    }
}

impl Actor {
    fn act(
        &mut self,
        action: Action,
        now: Duration,
        n: usize,
        medium: &mut Option<Claim>,
        owner: &mut Option<usize>,
    ) {
        self.begun = match action {
            Action::Look => Begun::Look,
            Action::Write(block) => {
                *medium = Claim::decode(&block);
                Begun::Written
            }
            Action::Wait(time) => Begun::Sleep { until: now + time },
            Action::Won { looked } => {
                let Part::Taking(taker) = &self.part else { unreachable!() };
                self.part =
                    Part::Holding(Holder::new(taker.claim().clone(), looked, Place::Shared));
                *owner = Some(n);
                Begun::Nothing
            }
            Action::Busy(_) | Action::Slow => {
                self.part = Part::Gone;
                Begun::Nothing
            }
        };
    }
}

/// Looks at everything that can happen until `end`; true when two engines work on one medium at
/// some time. Tells how many states there are.
fn two_at_work(start: &World, times: &Times, end: u64) -> (bool, usize) {
    let mut seen = HashSet::from([start.clone()]);
    let mut left = vec![start.clone()];
    while let Some(world) = left.pop() {
        if world.is_unsafe(times) {
            return (true, seen.len());
        }
        let next = world.after(times).into_iter().filter(|next| next.now <= ticks(end));
        left.extend(next.filter(|next| seen.insert(next.clone())));
    }
    (false, seen.len())
}

/// The holder and a taker of another machine; two takers of a stale claim; two of a free one; a
/// taker that is killed and started again.
fn worlds() -> Vec<(&'static str, World, u64)> {
    let stale = Some(claim(7, 70, State::Held));
    let restarting = Actor { restarts: true, ..taker(2, 100) };
    let held = Some(claim(1, 10, State::Held));
    vec![
        ("holder and taker", World::new(held.clone(), vec![holder(1, 10), taker(2, 100)]), 6),
        (
            "holder, and a taker that is killed",
            World::new(held, vec![holder(1, 10), restarting]),
            5,
        ),
        ("two takers of a stale claim", World::new(stale, vec![taker(1, 10), taker(2, 100)]), 5),
        ("two takers of a free medium", World::new(None, vec![taker(1, 10), taker(2, 100)]), 4),
    ]
}

#[test]
fn rule_15_two_engines_never_work_on_one_medium_in_whatever_order_they_run() {
    for (name, world, end) in worlds() {
        let (both, states) = two_at_work(&world, &SMALL, end);
        assert!(!both, "{name}: after {states} states");
        assert!(states > 1000, "{name}: only {states} states");
    }
}

#[test]
fn rule_15_a_claim_confirmed_too_early_is_found() {
    let early = Times { confirm: ticks(1), ..SMALL };
    let (_, world, end) = &worlds()[0];
    assert!(two_at_work(world, &early, *end).0);
}

#[test]
fn rule_15_a_claim_that_is_not_read_again_is_found() {
    let blind = Times { unseeing: ticks(1000), ..SMALL };
    let (_, world, end) = &worlds()[0];
    assert!(two_at_work(world, &blind, *end).0);
}

#[test]
fn rule_15_a_write_long_after_its_look_is_found() {
    let slow = Times { swift: ticks(1000), ..SMALL };
    let (_, world, end) = &worlds()[3];
    assert!(two_at_work(world, &slow, *end).0);
}

#[test]
fn rule_15_a_renewal_that_ends_when_another_may_work_is_found() {
    let lasting = Times { lasts: ticks(4), ..SMALL };
    let (_, world, end) = &worlds()[0];
    assert!(two_at_work(world, &lasting, *end).0);
}

/// Two machines resumed from one memory image hold one claim. Their first renewals may overlap in
/// any order; once one of them renews while the other does not, exactly one is left.
#[test]
fn rule_15_of_one_memory_image_resumed_twice_one_goes_on() {
    for order in
        [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 1, 0], [1, 1, 0, 0]]
    {
        for second in [[0, 0, 1, 1], [1, 1, 0, 0]] {
            let twin = |token| Actor { tokens: token, ..holder(1, 10) };
            let mut world = World::new(Some(claim(1, 10, State::Held)), vec![twin(10), twin(100)]);
            for n in order.into_iter().chain(second) {
                // Each renewal has two parts with a pause between them: it looks; it writes.
                for _ in 0..2 {
                    world = world.step(&SMALL, n).unwrap_or(world);
                }
                if matches!(world.actors[n].begun, Begun::Sleep { .. }) {
                    world.actors[n].begun = Begun::Nothing;
                }
            }
            let left = world.actors.iter().filter(|actor| actor.part != Part::Gone).count();
            assert_eq!(left, 1, "{order:?} {second:?}");
        }
    }
}

#[test]
fn rule_15_what_is_taken_at_once() {
    let at_once = |place: Place, found: Option<Claim>| {
        let mut taker = Taker::new([9; 16], claimant(1), [1; 16], place);
        taker.step(&Times::default(), ticks(0), Event::Awake);
        let action = taker.step(
            &Times::default(),
            ticks(0),
            Event::Seen { asked: ticks(0), block: &block(found.as_ref()) },
        );
        matches!(action, Action::Write(block) if Claim::decode(&block).unwrap().state == State::Held)
    };
    let other_boot = |state| {
        Some(Claim { claimant: Claimant { boot: [5; 16], ..claimant(1) }, ..claim(1, 3, state) })
    };
    let other_place = |state| {
        Some(Claim { claimant: Claimant { device: 5, ..claimant(1) }, ..claim(1, 3, state) })
    };
    let unknown = |state| {
        Some(Claim {
            claimant: Claimant { machine: [0; 16], boot: [0; 16], ..claimant(1) },
            ..claim(1, 3, state)
        })
    };
    for (place, found, expected) in [
        (Place::LocalFile, None, true),
        (Place::LocalFile, Some(claim(2, 3, State::Free)), true),
        (Place::LocalFile, Some(claim(1, 3, State::Held)), true),
        (Place::LocalFile, other_boot(State::Held), true),
        (Place::LocalFile, other_place(State::Held), false),
        (Place::LocalFile, Some(claim(2, 3, State::Held)), false),
        (Place::LocalFile, unknown(State::Held), false),
        (Place::Shared, None, false),
        (Place::Shared, Some(claim(2, 3, State::Free)), false),
        (Place::Shared, Some(claim(1, 3, State::Held)), true),
        (Place::Shared, Some(claim(1, 3, State::Free)), true),
        (Place::Shared, Some(claim(1, 3, State::Wanted)), false),
        (Place::Shared, other_boot(State::Held), false),
        (Place::Shared, other_place(State::Held), false),
    ] {
        assert_eq!(at_once(place, found.clone()), expected, "{place:?} {found:?}");
    }
}

/// A clock that tests set, and that sleeping moves.
#[derive(Default)]
struct Hands(Mutex<Duration>);

impl Clock for Hands {
    fn now(&self) -> Duration {
        *self.0.lock()
    }
}

/// A medium in memory. During the next read the machine sleeps for 20 s, when there is a clock; the
/// next write takes so many seconds by a clock.
struct Medium(Mutex<Vec<Block>>, Mutex<Option<Arc<Hands>>>, Mutex<Option<(Arc<Hands>, u64)>>);

impl Disk for Medium {
    fn blocks(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            let at = read.at.0 as usize;
            read.into.clone_from_slice(&self.0.lock()[at..at + read.into.len()]);
        }
        if let Some(clock) = self.1.lock().take() {
            *clock.0.lock() += ticks(20);
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        for run in runs {
            for (n, block) in run.blocks.iter().enumerate() {
                self.0.lock()[run.at.0 as usize + n] = block.block.clone();
            }
        }
        if let Some((clock, seconds)) = self.2.lock().take() {
            *clock.0.lock() += ticks(seconds);
        }
        Ok(())
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.write(&[*run])
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _: Pba, _: u64) -> Result<()> {
        Ok(())
    }
}

/// A medium, a clock, and guards on both.
struct Bench {
    medium: Arc<Medium>,
    clock: Arc<Hands>,
    tokens: Arc<Mutex<u8>>,
}

impl Bench {
    fn new() -> Bench {
        Bench::of(32)
    }

    fn of(blocks: usize) -> Bench {
        Bench {
            medium: Arc::new(Medium(
                Mutex::new(Block::zeroed_vec(blocks)),
                Mutex::default(),
                Mutex::default(),
            )),
            clock: Arc::default(),
            tokens: Arc::default(),
        }
    }

    fn pass(&self, seconds: u64) {
        *self.clock.0.lock() += ticks(seconds);
    }

    /// Takes the claim as a machine; `meanwhile` happens in each of its waits.
    fn take(&self, machine: u8, meanwhile: impl Fn() + Send + Sync + 'static) -> Result<Guard> {
        self.take_at(Place::Shared, machine, meanwhile)
    }

    /// The next write takes so long.
    fn slow_write(&self, seconds: u64) {
        *self.medium.2.lock() = Some((self.clock.clone(), seconds));
    }

    fn take_at(
        &self,
        place: Place,
        machine: u8,
        meanwhile: impl Fn() + Send + Sync + 'static,
    ) -> Result<Guard> {
        let (clock, tokens) = (self.clock.clone(), self.tokens.clone());
        let token = move || {
            *tokens.lock() += 1;
            Ok([*tokens.lock(); 16])
        };
        let sleep = move |time| {
            *clock.0.lock() += time;
            meanwhile();
        };
        let outside =
            Outside { clock: self.clock.clone(), token: Box::new(token), sleep: Box::new(sleep) };
        Guard::take(
            self.medium.clone(),
            [9; 16],
            claimant(machine),
            place,
            Times::default(),
            outside,
            &mut |_| {},
        )
    }
}

fn put(disk: &dyn Disk, class: Class) -> Result<()> {
    let block = Block::zeroed();
    disk.write(&[Run { at: Pba(20), blocks: &[onefold_core::BlockRef { block: &block, class }] }])
}

#[test]
fn rule_15_a_holder_that_slept_finds_out_before_it_writes_or_acknowledges() {
    let bench = Bench::new();
    let first = bench.take(1, || {}).unwrap();
    put(&first, Class::Data).unwrap();
    first.renew().unwrap();
    // The holder sleeps; another machine waits as the rule says.
    let second = bench.take(2, || {}).unwrap();
    assert!(bench.clock.now() >= ticks(27), "{:?}", bench.clock.now());
    for _ in 0..2 {
        let error = put(&first, Class::Data).unwrap_err();
        assert_eq!(error.kind(), Kind::Stopped);
        assert!(error.to_string().contains("taken over by process 1"), "{error}");
    }
    assert!(first.flush().is_err() && first.renew().is_err() && first.release().is_err());
    let mut into = Block::zeroed_vec(1);
    let mut reads = [Read::new(Pba(20), &mut into)];
    first.read(&mut reads);
    assert!(reads[0].result.is_err());
    second.renew().unwrap();
    second.release().unwrap();
    assert!(put(&second, Class::Data).is_err());
}

#[test]
fn rule_15_a_holder_that_renews_keeps_its_store() {
    let bench = Bench::new();
    let first = Arc::new(bench.take(1, || {}).unwrap());
    let renewing = first.clone();
    let error = bench.take(2, move || renewing.renew().unwrap()).err().unwrap();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains("in use by process 1 on host"), "{error}");
    put(&*first, Class::Super).unwrap();
}

#[test]
fn rule_15_each_superblock_is_preceded_by_a_look() {
    let bench = Bench::new();
    let guard = bench.take(1, || {}).unwrap();
    bench.medium.0.lock()[CLAIM_AT.0 as usize] = *Block::zeroed();
    put(&guard, Class::Data).unwrap();
    let error = put(&guard, Class::Super).unwrap_err();
    assert!(error.to_string().contains("overwritten"), "{error}");
    assert!(put(&guard, Class::Data).is_err(), "for good");
}

#[test]
fn rule_15_a_clock_that_jumps_makes_it_look() {
    let bench = Bench::new();
    bench.pass(1000);
    let guard = bench.take(1, || {}).unwrap();
    *bench.clock.0.lock() = ticks(5);
    put(&guard, Class::Data).unwrap();
    bench.pass(1_000_000);
    put(&guard, Class::Data).unwrap();
    bench.medium.0.lock()[CLAIM_AT.0 as usize] = *Block::zeroed();
    *bench.clock.0.lock() = ticks(5);
    assert!(put(&guard, Class::Data).is_err());
}

#[test]
fn rule_15_a_machine_that_slept_during_a_look_looks_again() {
    let bench = Bench::new();
    let guard = bench.take(1, || {}).unwrap();
    bench.pass(11);
    *bench.medium.1.lock() = Some(bench.clock.clone());
    put(&guard, Class::Data).unwrap();
    *bench.medium.1.lock() = Some(bench.clock.clone());
    guard.renew().unwrap();
}

#[test]
fn rule_15_a_disk_that_takes_long_to_renew_stops_nobody_while_no_other_can_work() {
    let bench = Bench::new();
    let guard = bench.take(1, || {}).unwrap();
    guard.renew().unwrap();
    for _ in 0..10 {
        bench.pass(5);
        bench.slow_write(15);
        guard.renew().unwrap();
        put(&guard, Class::Super).unwrap();
    }
    // A taker that had watched since the last renewal could work by now.
    bench.pass(5);
    bench.slow_write(25);
    let error = guard.renew().unwrap_err();
    assert!(error.kind() == Kind::Stopped && error.to_string().contains("took so long"), "{error}");
    assert!(put(&guard, Class::Data).is_err(), "for good");
}

#[test]
fn rule_15_nobody_else_reaches_a_local_file_however_long_its_disk_takes() {
    let bench = Bench::new();
    let guard = bench.take_at(Place::LocalFile, 1, || {}).unwrap();
    for seconds in [1, 11, 1000] {
        bench.slow_write(seconds);
        guard.renew().unwrap();
        bench.pass(11);
        // Each look takes 20 s.
        *bench.medium.1.lock() = Some(bench.clock.clone());
        put(&guard, Class::Super).unwrap();
    }
    // Bytes of another stop it all the same.
    bench.medium.0.lock()[CLAIM_AT.0 as usize] = *claim(2, 3, State::Held).encode();
    bench.pass(11);
    let error = put(&guard, Class::Data).unwrap_err();
    assert!(error.to_string().contains("taken over"), "{error}");
}

#[test]
fn rule_15_a_cleared_medium_has_no_claim() {
    let bench = Bench::new();
    let guard = bench.take(1, || {}).unwrap();
    clear(&*bench.medium).unwrap();
    assert!(bench.medium.0.lock()[..16].iter().all(Block::is_zero));
    assert!(guard.renew().is_err());
}

/// A store on a bench's medium, opened behind a guard.
fn engine(bench: &Bench, guard: &Arc<Guard>) -> Result<Engine> {
    let settings =
        Settings { window_blocks: 32, unflushed_blocks: 256, ..Settings::for_memory(32 << 20) };
    Engine::open(guard.clone(), bench.clock.clone(), settings)
}

/// Writes a block of this byte and flushes: what is acknowledged.
fn acknowledged(engine: &Engine, volume: VolumeId, lba: u64, byte: u8) -> bool {
    engine.write(volume, lba * 4096, &[byte; 4096]).and_then(|_| engine.flush()).is_ok()
}

/// Two engines work on one simulated disk, and take it from each other each time that the other one
/// sleeps. Nothing acknowledged is lost, and the one that slept acknowledges nothing any more.
#[test]
fn rule_15_of_two_engines_on_one_disk_each_has_all_that_was_acknowledged_before() {
    let bench = Bench::of(4096);
    Engine::format(
        &*bench.medium,
        &Format { zone_blocks: 64, ..Format::new([9; 16], [2; 32], 4096) },
    )
    .unwrap();
    let mut asleep: Vec<Engine> = Vec::new();
    for turn in 0..6 {
        let guard = Arc::new(bench.take(turn % 2 + 1, || {}).unwrap());
        let engine = engine(&bench, &guard).unwrap();
        let volume =
            if turn == 0 { engine.create_volume("v", 1024).unwrap().0 } else { VolumeId(1) };
        let mut found = Block::zeroed_vec(2 * usize::from(turn));
        let mut reads = [BlockRead { first: Lba(0), into: &mut found, result: Ok(()) }];
        engine.read(volume, &mut reads);
        assert!(reads[0].result.is_ok());
        assert!(
            found.iter().enumerate().all(|(at, block)| block.0 == [at as u8 / 2 + 1; 4096]),
            "turn {turn}"
        );
        for lba in 0..2 {
            assert!(acknowledged(&engine, volume, u64::from(turn) * 2 + lba, turn + 1));
            // Actors that woke up write over it, also a superblock.
            for old in &asleep {
                assert!(
                    !acknowledged(old, volume, u64::from(turn) * 2 + lba, 99)
                        && old.checkpoint().is_err()
                );
            }
        }
        asleep.push(engine);
    }
    let disk: Arc<dyn Disk> = bench.medium.clone();
    assert_eq!(check(&disk, &mut |_| {}).unwrap().problems_found, 0);
}
