//! The next event: an operation that is applied, a reply that arrives, is lost or late, or an actor
//! that is killed, stopped or continued.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use onefold_cluster::format::{ObjectId, key};
use onefold_core::{
    Error, Kind,
    object::{
        Change, Guard, Holder, ObjectName, Read, ReadPart, ReadResult, Refusal, Version, Write,
    },
};

use super::{
    super::{
        checks::{self, serving},
        told::{short_change, short_guard},
    },
    Inner, JUDGED_AFTER, LATE_MAX, Late, Op, Reply, Role, State, noted_by,
};
use crate::checker::{Checker, Failure};

/// The schedule's decision.
pub(super) enum Next {
    Run(usize),
    Kill(usize),
    Nothing,
}

impl Inner {
    pub(in crate::cluster) fn fail(&mut self, finding: Failure) {
        if self.loud {
            println!("{finding}");
        }
        self.failure.get_or_insert(finding);
    }

    /// Tells what happens, when somebody wants to know.
    pub(in crate::cluster) fn say(&self, text: impl FnOnce() -> String) {
        if self.loud {
            println!(
                "{:>10.3}  {}",
                (self.now - Duration::from_secs(1_000_000)).as_secs_f64(),
                text()
            );
        }
    }

    fn mix(&mut self, text: &str) {
        self.trace = onefold_core::checksum::fast(self.trace, text.as_bytes());
    }

    pub(super) fn keep_late(&mut self, identity: String, op: Write) {
        if self.objects.is_fenced(&identity) {
            return;
        }
        let many = self.params.late_last || self.params.renames;
        let most = if many { 8 * LATE_MAX } else { LATE_MAX };
        if self.late.len() < most {
            self.late.push(Late { identity, op });
        } else if self.params.late_last {
            // Any of them, so that old ones and new ones are left in the end.
            let at = self.rng.below(self.late.len() as u64) as usize;
            self.late[at] = Late { identity, op };
        }
    }

    /// A copy comes that was late, unless its session was shut out.
    pub(super) fn come(&mut self, late: &Late) {
        if !self.objects.is_fenced(&late.identity) {
            let meant = self.meant(&late.op);
            self.note_late(&meant);
            let applied = self.apply(&late.identity, &late.op).is_ok();
            if applied && meant.guards.contains(&Guard::Absent) {
                self.made_late.insert((meant.object.clone(), Vec::new()));
            }
            self.say(|| {
                format!("a late copy {}", if applied { "was applied" } else { "was refused" })
            });
            self.reach.hit(if applied { "a late copy applies" } else { "a late copy is refused" });
        }
    }

    /// Fails when a limit is passed.
    fn limits(&mut self, discards: usize) {
        let most = self.params.discards_max;
        if discards == most {
            self.reach.hit("as many long trims as there may be");
        }
        if discards > most {
            self.fail(Failure::new(
                Checker::Bounds,
                format!("a volume has {discards} long trims under way, and {most} may be"),
            ));
        }
    }

    /// Fails when an object has more pending drops than its limit and the changes allow that may have
    /// been decided together: of each worker, of those who write, and of a scrub. A change that compares
    /// the version of the object was decided alone.
    fn drops(&mut self, id: ObjectId, op: &Write) {
        let object = &op.object;
        let Some(map) = self.objects.get(object).and_then(|object| checks::parse(id, object).ok())
        else {
            return;
        };
        let together = self.params.workers + self.params.clients + 2;
        let (found, limit) = (map.pending.len(), self.params.pending_max);
        if found >= limit {
            self.reach.hit("as many pending drops as there may be");
        }
        let is_drop = |(key, _): &(Vec<u8>, Vec<u8>)| key::parse_pending(key).is_some();
        let adds =
            |change: &Change| matches!(change, Change::SetOmap(pairs) if pairs.iter().any(is_drop));
        let alone = op.guards.iter().any(|guard| matches!(guard, Guard::Version(_)));
        let most = if alone && op.changes.iter().any(adds) {
            limit
        } else {
            limit + together * map.entries.len().max(1)
        };
        if found > most {
            let what = format!("object {id} has {found} pending drops, and {limit} may wait");
            self.fail(Failure::new(Checker::Bounds, what));
        }
    }

    /// Fails when a session has noted far more attempts than it has on the way. Where nothing fails,
    /// and chunks have one copy, each that is over is taken back with the next ones.
    fn attempts(&mut self, op: &Write) {
        if !self.params.tidy || self.params.spread_at < 1000 {
            return;
        }
        let sessions = |change: &Change| match change {
            Change::SetOmap(pairs) => {
                pairs.iter().filter_map(|(key, _)| key::session_of_attempt(key)).collect()
            }
            _ => Vec::new(),
        };
        let noted: Vec<u64> = op.changes.iter().flat_map(sessions).collect();
        let Some((&session, object)) = noted.first().zip(self.objects.get(&op.object)) else {
            return;
        };
        let is_its = |key: &&Vec<u8>| key::session_of_attempt(key) == Some(session);
        let found = object.omap.keys().filter(is_its).count();
        let most = self.most_noted.entry(session).or_default();
        *most = noted.len().max(*most);
        let most = 3 * *most + 4;
        if op
            .changes
            .iter()
            .any(|change| matches!(change, Change::DropOmap(keys) if !keys.is_empty()))
        {
            self.reach.hit("attempts were taken back");
        }
        if found > most {
            let what = format!("session {session} has {found} attempts, and {most} may be");
            self.fail(Failure::new(Checker::Bounds, what));
        }
    }

    /// Fails when somebody who lives is to be shut out by one that stands by.
    pub(super) fn judge_fences(&mut self, ops: &[Op]) {
        for op in ops {
            if let Op::Fence(identity) = op
                && !self.objects.is_fenced(identity)
                && let Some(finding) =
                    self.serving.judge(identity, self.now, self.params.settings().gateway_lease)
            {
                self.fail(finding);
            }
        }
    }

    /// Notes the references that a late copy may make. An object that it makes again is noted with an empty key.
    pub(super) fn note_late(&mut self, op: &Write) {
        for change in &op.changes {
            if let Change::SetOmap(pairs) = change {
                let references =
                    pairs.iter().filter(|(key, _)| key::parse_reference(key).is_some());
                self.made_late.extend(references.map(|(key, _)| (op.object.clone(), key.clone())));
            }
        }
    }

    /// Notes which layer a volume is made over, and when its name stands for it.
    fn note_layers(&mut self, op: &Write) {
        let pairs = op.changes.iter().filter_map(|change| {
            if let Change::SetOmap(pairs) = change { Some(pairs) } else { None }
        });
        let number = |value: &[u8], at: usize| {
            value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
        };
        let header = op.object.name.strip_prefix("v.").map(|id| u64::from_str_radix(id, 16));
        let makes = op.guards.contains(&Guard::Omap(b"b".to_vec(), Vec::new()));
        for (key, value) in pairs.flatten() {
            if let (true, b"p", Some(Ok(id)), Some(over)) =
                (makes, key.as_slice(), &header, number(value, 0))
            {
                self.model.born(*id, over);
            } else if let (true, Some(n), Some(id)) = (
                op.object.name.starts_with("n."),
                key.strip_prefix(b"nv").and_then(|n| std::str::from_utf8(n).ok()?.parse().ok()),
                number(value, 1),
            ) {
                self.model.is_now(n, id);
            }
        }
    }

    /// Notes the references that come long after their notes.
    fn note_slow(&mut self, actor: usize, op: &Write) {
        let pairs = op.changes.iter().filter_map(|change| {
            if let Change::SetOmap(pairs) = change { Some(pairs) } else { None }
        });
        for reference in pairs.flatten().filter_map(|(key, _)| key::parse_reference(key)) {
            if self.noted.get(&reference).is_some_and(|noted| self.now >= *noted + JUDGED_AFTER) {
                self.slow.insert(reference, actor);
            }
        }
    }

    /// A session ends, or is shut out: what it added too late, it does not drop.
    pub(super) fn leaves_slow(&mut self, actor: usize) {
        let (left, slow): (BTreeMap<_, _>, _) =
            mem::take(&mut self.slow).into_iter().partition(|(_, by)| *by == actor);
        self.slow = slow;
        self.slow_left.extend(left.into_keys());
    }

    /// One thing happens.
    pub(super) fn event(&mut self) -> Next {
        self.now += Duration::from_millis(self.rng.within(1, 5));
        if !self.calm && self.rng.below(1000) < self.params.jumps {
            self.now += Duration::from_secs(self.rng.within(1, 40));
            self.reach.hit("time jumps");
        }
        if !self.calm
            && let Some(next) = self.mischief()
        {
            return next;
        }
        let ready: Vec<usize> = (0..self.actors.len())
            .filter(|id| self.actors[*id].state == State::Ready && !self.actors[*id].stopped)
            .collect();
        let answers =
            |at: &usize| self.is_first(*at) && !self.is_slow_fence(*at) && !self.is_held(*at);
        let open: Vec<usize> = (0..self.flights.len()).filter(answers).collect();
        let choice = self.rng.below((ready.len() + open.len()) as u64) as usize;
        if choice < ready.len() {
            return Next::Run(ready[choice]);
        }
        match open.get(choice - ready.len()) {
            Some(at) => self.go_on(*at),
            None => {
                // Everybody is stopped.
                self.actors.iter_mut().for_each(|actor| actor.stopped = false);
            }
        }
        Next::Nothing
    }

    /// Until when an operation is on its way at least. One that changes what a volume inherits from takes long,
    /// where layers go together.
    pub(super) fn held(&mut self, op: &Op) -> Duration {
        let changes = |guard: &Guard| matches!(guard, Guard::Omap(key, value) if key == b"p" && !value.is_empty());
        let slow = self.params.stacks
            && matches!(op, Op::Write(op) if op.guards.iter().any(changes))
            && self.rng.percent(50);
        match slow {
            true => self.now + Duration::from_millis(self.rng.within(5, 2000)),
            false => Duration::ZERO,
        }
    }

    /// An operation is on its way for longer.
    fn is_held(&self, at: usize) -> bool {
        let flight = &self.flights[at];
        !self.calm && flight.reply.is_none() && self.now < flight.held
    }

    /// A fence is applied, and who sent it does not know yet.
    fn is_slow_fence(&self, at: usize) -> bool {
        let flight = &self.flights[at];
        self.now < self.fences_answered
            && flight.reply.is_some()
            && matches!(flight.op, Op::Fence(_))
    }

    /// Half of the fences take long, and who is shut out goes on meanwhile.
    fn slow_fence(&mut self, other: &str) {
        if self.rng.percent(50) {
            self.fences_answered = self.now + Duration::from_millis(self.rng.within(5, 150));
            let fenced = self.actor_of(other);
            self.actors[fenced].stopped = false;
        }
    }

    /// Operations of a session on one object are applied in their order.
    fn is_first(&self, at: usize) -> bool {
        let flight = &self.flights[at];
        let Some(object) = flight.op.object() else { return true };
        !self.flights[..at]
            .iter()
            .any(|other| other.identity == flight.identity && other.op.object() == Some(object))
    }

    fn mischief(&mut self) -> Option<Next> {
        if !self.late.is_empty() && self.rng.below(1000) < self.params.late {
            let late = self.late.swap_remove(self.rng.below(self.late.len() as u64) as usize);
            self.come(&late);
        }
        let mortal: Vec<usize> = (0..self.actors.len())
            .filter(|id| self.actors[*id].mortal && self.actors[*id].state == State::Waiting)
            .collect();
        if self.params.sets > 0 && self.rng.below(1000) < self.params.sets {
            self.set_a_clock();
        }
        if self.rng.below(1000) < self.params.kills
            && let Some(actor) = self.rng.pick(&mortal).copied()
        {
            self.reach.hit("an actor is killed");
            self.say(|| format!("{:?} is killed", self.actors[actor].role));
            return Some(Next::Kill(actor));
        }
        if self.rng.below(1000) < self.params.stops
            && let Some(actor) = self.rng.pick(&mortal).copied()
        {
            let stopped = !self.actors[actor].stopped;
            self.actors[actor].stopped = stopped;
            self.reach.hit(if stopped { "an actor is stopped" } else { "an actor is continued" });
            self.say(|| {
                format!(
                    "{:?} is {}",
                    self.actors[actor].role,
                    if stopped { "stopped" } else { "continued" }
                )
            });
        }
        None
    }

    /// Somebody sets the clock of a server.
    fn set_a_clock(&mut self) {
        let servers: Vec<usize> = (0..self.actors.len())
            .filter(|id| self.actors[*id].role.0 == Role::Gateway)
            .filter(|id| self.actors[*id].state != State::Ended)
            .collect();
        let by = Duration::from_secs(self.rng.within(1, 60));
        let forward = self.rng.percent(70);
        if let Some(actor) = self.rng.pick(&servers).copied() {
            let actor = &mut self.actors[actor];
            (actor.ahead, actor.back) =
                if forward { (by, Duration::ZERO) } else { (Duration::ZERO, by) };
            self.reach.hit("a server's clock is set");
        }
    }

    /// Applies an operation, or lets its reply arrive.
    fn go_on(&mut self, at: usize) {
        if let Some(reply) = self.flights[at].reply.take() {
            let flight = self.flights.remove(at);
            self.arrive(flight.actor, flight.slot, reply);
            return;
        }
        let faulty =
            !self.calm && matches!(self.flights[at].op, Op::Write(_) | Op::Read(_) | Op::Lock(..));
        if faulty && self.rng.below(1000) < self.lost_of(&self.flights[at].op) {
            return self.lose(at);
        }
        let (identity, op) = (self.flights[at].identity.clone(), self.flights[at].op.clone());
        let full = faulty
            && self.params.full > 0
            && self.rng.below(1000) < self.params.full
            && op.takes_space();
        let reply = if full {
            self.reach.hit("the store is full");
            Err(Refusal::Full)
        } else {
            self.perform(&identity, &op)
        };
        if let (Op::Write(op), Ok(_)) = (&op, &reply)
            && !self.calm
            && self.rng.below(1000) < self.copies_of(op)
        {
            self.reach.hit("an operation is copied");
            self.keep_late(identity, op.clone());
        }
        // A fence may have answered all of its session, this one too.
        if let Some(flight) = self.flights.get_mut(at) {
            flight.reply = Some(reply);
        }
    }

    /// Operations whose reply is lost, in thousandths.
    fn lost_of(&self, op: &Op) -> u64 {
        let named = self.params.unknown > 0 && self.params.renames && op.is_of_names();
        if named { self.params.unknown.max(50) } else { self.params.unknown }
    }

    /// Copies of an operation, in thousandths. What finds a place empty does so once, and is what a
    /// value that comes back would let in.
    fn copies_of(&self, op: &Write) -> u64 {
        if self.params.renames && self.params.copies > 0 && op.object.name.starts_with("n.") {
            return 400;
        }
        let empty = |guard: &Guard| matches!(guard, Guard::Omap(key, value) if value.is_empty() && key::offset(key).is_some());
        if self.params.late_last && op.guards.iter().any(empty) { 500 } else { self.params.copies }
    }

    /// A reply is lost: the operation is applied now, later, or never.
    fn lose(&mut self, at: usize) {
        let flight = self.flights.remove(at);
        match (flight.op, self.rng.below(3)) {
            (Op::Write(op), 0) => {
                self.reach.hit("applied, and the reply is lost");
                let _ = self.perform(&flight.identity, &Op::Write(op));
            }
            (Op::Write(op), 1) => {
                self.reach.hit("delayed, and the reply is lost");
                self.keep_late(flight.identity, op);
            }
            (Op::Lock(object, lock, cookie, lease), 0) => {
                let _ = self.perform(&flight.identity, &Op::Lock(object, lock, cookie, lease));
            }
            _ => self.reach.hit("an operation is lost"),
        }
        self.arrive(flight.actor, flight.slot, Err(Refusal::Unknown));
    }

    fn arrive(&mut self, actor: usize, slot: usize, reply: Result<Reply, Refusal>) {
        let actor = &mut self.actors[actor];
        actor.replies[slot] = Some(reply);
        if actor.replies.iter().all(Option::is_some) {
            actor.state = State::Ready;
        }
    }

    fn perform(&mut self, identity: &str, op: &Op) -> Result<Reply, Refusal> {
        let unheard = self.fence_is_unheard(identity, op);
        if self.objects.is_fenced(identity) && !unheard {
            self.reach.hit("a fenced session is refused");
            return Err(Refusal::Fenced);
        }
        if unheard && matches!(op, Op::Write(_)) {
            self.reach.hit("a beat is applied after the fence");
        }
        match op {
            Op::Write(op) => self.apply(identity, op).map(Reply::Version),
            Op::Read(op)
                if self.unreadable.as_ref() == Some(&op.object)
                    && op.parts.iter().any(|part| matches!(part, ReadPart::Data(..))) =>
            {
                Err(Refusal::Failed(Error::new(Kind::Io, "the object can't be read")))
            }
            Op::Read(op) => self.store().read(op).map(|mut answer| {
                self.shorten(&mut answer, op);
                Reply::ReadResult(answer)
            }),
            Op::List(pool, from, most) => {
                let most = (*most).min(self.params.page);
                Ok(Reply::Page(self.store().list(*pool, from.as_deref(), most)))
            }
            Op::Lock(object, lock, cookie, lease) => {
                let holder = Holder { identity: identity.into(), cookie: cookie.clone() };
                let now = self.now;
                let locked = self.store().lock(object, lock, holder, now, *lease);
                self.reopen(object);
                locked.map(|()| Reply::Done)
            }
            Op::Break(object, lock, holder) => {
                self.store().break_lock(object, lock, holder);
                Ok(Reply::Done)
            }
            Op::Holder(object, lock) => {
                let now = self.now;
                Ok(Reply::Holder(self.store().holder(object, lock, now)))
            }
            Op::Fence(other) => {
                self.say(|| format!("{other} is fenced"));
                if self.params.gateways && !self.calm {
                    if !self.objects.is_fenced(other) {
                        self.unheard.insert(other.clone(), BTreeSet::new());
                        self.slow_fence(other);
                    }
                    if let Some(fencers) = self.unheard.get_mut(other) {
                        fencers.insert(identity.to_owned());
                    }
                }
                self.objects.fence(other);
                self.store().fence(other);
                self.leaves_slow(self.actor_of(other));
                self.late.retain(|late| late.identity != *other);
                self.model.fenced(self.actors.iter().position(|actor| actor.identity == *other));
                self.reach.hit("a session is fenced");
                Ok(Reply::Done)
            }
        }
    }

    /// True when the part of the store that has the object of the server at work has not heard that this session
    /// is fenced. It hears of a fence with the first operation that a fencer sends there; the other parts
    /// hear at once, as they would if the fencer had asked for something.
    fn fence_is_unheard(&mut self, identity: &str, op: &Op) -> bool {
        let object = match op {
            Op::Write(op) => &op.object,
            Op::Read(op) => &op.object,
            _ => return false,
        };
        if object.name != serving::OBJECT {
            return false;
        }
        self.unheard.retain(|_, fencers| !fencers.contains(identity));
        self.unheard.contains_key(identity)
    }

    /// The store may give shorter pages than it was asked for.
    fn shorten(&self, answer: &mut ReadResult, op: &Read) {
        use onefold_core::object::Seen;
        for (seen, part) in answer.seen.iter_mut().zip(&op.parts) {
            // The engine needs a whole map in one page, which has a bounded number of keys.
            let list = matches!(part, ReadPart::Page(_, most) if *most < 500 || *most == 1000);
            if let (Seen::Pairs { pairs, more }, true) = (seen, list)
                && pairs.len() > self.params.page
            {
                pairs.truncate(self.params.page);
                *more = true;
            }
        }
    }

    /// Applies a change and checks what must always hold.
    pub(super) fn apply(&mut self, identity: &str, op: &Write) -> Result<Version, Refusal> {
        let sealed = op;
        let op = &self.meant(sealed);
        let before = self.objects.get(&op.object).cloned();
        let gap = self.rng.below(3);
        let result = self.change(sealed, gap);
        self.mix(&format!("{identity} {:?} {}", op.object, result.is_ok()));
        if self.loud {
            let guards: Vec<String> = op.guards.iter().map(short_guard).collect();
            let changes: Vec<String> = op.changes.iter().map(short_change).collect();
            let outcome = match &result {
                Ok(version) => format!("v{}", version.0),
                Err(refusal) => refusal.to_string(),
            };
            self.say(|| {
                format!(
                    "{identity} {:?} [{}] {} -> {outcome}",
                    op.object,
                    guards.join(" "),
                    changes.join(" ")
                )
            });
        }
        let actor = self.actor_of(identity);
        if result.is_ok()
            && self.actors.get(actor).is_some_and(|actor| actor.role.0 == Role::Worker)
        {
            self.double.note(actor, op);
        }
        if result.is_ok() {
            self.note_slow(actor, op);
            let now = self.now;
            self.noted.extend(noted_by(op).map(|reference| (reference, now)));
        }
        if result.is_ok() && op.object.name.starts_with("c.") {
            let keys = op.changes.iter().filter_map(|change| {
                if let Change::DropOmap(keys) = change { Some(keys) } else { None }
            });
            self.dropped.extend(keys.flatten().map(|key| (op.object.clone(), key.clone())));
        }
        if result.is_ok()
            && let Some(finding) =
                checks::after(&self.objects, &op.object, before.as_ref(), op, &self.dropped)
        {
            self.fail(finding);
        }
        if result.is_ok() && op.object.name == serving::OBJECT {
            let lease = self.params.settings().gateway_lease;
            let Inner { serving, objects, now, .. } = self;
            if let Some(finding) = serving.after(objects, &op.object, *now, lease) {
                self.fail(finding);
            }
        }
        if result.is_ok() && self.params.snapshots {
            self.note_layers(op);
        }
        if result.is_ok() {
            let Inner { naming, objects, .. } = self;
            if let Some(finding) = naming.after(objects, actor, op) {
                self.fail(finding);
            }
        }
        if let Some(discards) = checks::discards(&self.objects, &op.object) {
            self.limits(discards);
        }
        if let Some(id) = ObjectId::parse(&op.object.name).filter(|_| result.is_ok()) {
            self.drops(id, op);
        }
        if result.is_ok() && op.object.name.starts_with("a.") {
            self.attempts(op);
        }
        result
    }
}

impl Op {
    fn object(&self) -> Option<&ObjectName> {
        match self {
            Op::Write(op) => Some(&op.object),
            Op::Read(op) => Some(&op.object),
            Op::Lock(object, ..) | Op::Break(object, ..) | Op::Holder(object, _) => Some(object),
            Op::List(..) | Op::Fence(_) => None,
        }
    }

    /// True for an operation on a shard of names.
    fn is_of_names(&self) -> bool {
        self.object().is_some_and(|object| object.name.starts_with("n."))
    }

    fn takes_space(&self) -> bool {
        let adds = |change: &Change| {
            !matches!(change, Change::Remove | Change::DropOmap(_) | Change::Zero(..))
        };
        matches!(self, Op::Write(op) if op.changes.iter().any(adds))
    }
}
