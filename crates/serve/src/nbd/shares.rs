//! Chooses the connection that works next when there are fewer places than connections that want
//! one: deficit round robin among peers, and among the volumes of each (rule 12 of SECURITY.md).
//!
//! While others are connected, a peer holds at most half of the places, and a volume half of its
//! peer's share. One place stays free for each connected peer that holds none, as long as these are at
//! most half of the places: several peers together can't hold all of them. Peers and volumes that wait and may hold one more place have turns in order. One
//! whose work cost more than its turn is passed over until later turns have paid for it.
//!
//! *Invariant:* a pure decision, without threads, clocks or chance: [`turns`](super::turns) drives
//! it.

use std::collections::VecDeque;

use super::rights::Peer;

/// Whom a share belongs to: a volume, as one peer uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) peer: Peer,
    /// Number of the volume.
    pub(crate) volume: u64,
}

/// The most that one turn is taken to cost.
const COST_MAX: i64 = 1 << 40;

/// The places, who holds them, and who waits; `W` is one that waits.
pub(crate) struct Shares<W> {
    places: usize,
    /// The assumed cost of a turn at first, and the credit that each waiting flow gets in a round.
    quantum: i64,
    held: usize,
    waiting: usize,
    peers: Vec<Flow<Peer, Vec<Flow<u64, VecDeque<W>>>>>,
}

/// A peer or a volume; a vector of them is in the order of their turns.
struct Flow<K, Q> {
    key: K,
    /// Connections.
    present: usize,
    held: usize,
    /// The remaining credit in this round; negative after more was used than granted.
    deficit: i64,
    queue: Q,
}

impl<K, Q: Default> Flow<K, Q> {
    fn new(key: K) -> Flow<K, Q> {
        Flow { key, present: 0, held: 0, deficit: 0, queue: Q::default() }
    }
}

/// What decides how many places a peer may hold.
#[derive(Clone, Copy)]
struct Room {
    places: usize,
    held: usize,
    peers: usize,
    /// Peers that hold none.
    without: usize,
}

impl Room {
    /// The most that a peer may hold, which holds `own` now: half beside others, and what the others do
    /// not hold, but for one place of each of them that holds none. One at least.
    fn most(self, own: usize) -> usize {
        if self.peers < 2 {
            return self.places;
        }
        let without = self.without - usize::from(own == 0);
        let others = self.held - own + without.min(self.places / 2);
        (self.places / 2).min(self.places.saturating_sub(others)).max(1)
    }
}

/// The most that one flow may hold of `all`, if there are several.
fn most(all: usize, several: bool) -> usize {
    if several { (all / 2).max(1) } else { all }
}

/// The flow whose turn it is, of those that are `ready`. When none may cost anything, all of these
/// are granted as many rounds as the first of them needs.
fn turn<K, Q>(
    flows: &mut [Flow<K, Q>],
    quantum: i64,
    ready: impl Fn(&Flow<K, Q>) -> bool,
) -> Option<usize> {
    let rounds = flows
        .iter()
        .filter(|flow| ready(flow))
        .map(|flow| if flow.deficit > 0 { 0 } else { -flow.deficit / quantum + 1 })
        .min()?;
    flows
        .iter_mut()
        .for_each(|flow| flow.deficit += if ready(flow) { rounds * quantum } else { 0 });
    flows.iter().position(|flow| flow.deficit > 0 && ready(flow))
}

impl<W> Shares<W> {
    /// `places`, of which one costs `quantum` at first, and at least.
    pub(crate) fn new(places: usize, quantum: u32) -> Shares<W> {
        Shares {
            places: places.max(1),
            quantum: i64::from(quantum.max(1)),
            held: 0,
            waiting: 0,
            peers: Vec::new(),
        }
    }

    /// A connection more.
    pub(crate) fn join(&mut self, holder: Holder) {
        let peer = find_or_add(&mut self.peers, holder.peer);
        peer.present += 1;
        find_or_add(&mut peer.queue, holder.volume).present += 1;
    }

    /// A connection less.
    pub(crate) fn leave(&mut self, holder: Holder) {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.key == holder.peer) else { return };
        peer.present = peer.present.saturating_sub(1);
        if let Some(volume) = peer.queue.iter_mut().find(|volume| volume.key == holder.volume) {
            volume.present = volume.present.saturating_sub(1);
        }
        peer.queue.retain(|volume| volume.present > 0);
        self.peers.retain(|peer| peer.present > 0);
    }

    /// True when only one volume of one peer is connected.
    pub(crate) fn alone(&self) -> bool {
        self.peers.len() < 2 && self.peers.first().is_none_or(|peer| peer.queue.len() < 2)
    }

    /// What decides how many places each peer may hold now.
    fn room(&self) -> Room {
        Room {
            places: self.places,
            held: self.held,
            peers: self.peers.len(),
            without: self.peers.iter().filter(|peer| peer.held == 0).count(),
        }
    }

    /// A place, when one is free for `holder` and nobody waits.
    pub(crate) fn hold_at_once(&mut self, holder: Holder) -> bool {
        let room = self.room();
        let free = self.waiting == 0 && self.held < self.places;
        let Some(peer) = self
            .peers
            .iter_mut()
            .find(|peer| free && peer.key == holder.peer && peer.held < room.most(peer.held))
        else {
            return false;
        };
        let peers = most(self.places, room.peers > 1);
        let volumes = most(peers, peer.queue.len() > 1);
        let Some(volume) = peer
            .queue
            .iter_mut()
            .find(|volume| volume.key == holder.volume && volume.held < volumes)
        else {
            return false;
        };
        peer.held += 1;
        volume.held += 1;
        self.held += 1;
        true
    }

    /// One waits for a place.
    pub(crate) fn wait(&mut self, holder: Holder, who: W) {
        if self.waiting == 0 {
            self.forget_costs();
        }
        self.waiting += 1;
        let peer = find_or_add(&mut self.peers, holder.peer);
        // A peer that did not wait keeps no credit.
        if peer.queue.iter().all(|volume| volume.queue.is_empty()) {
            peer.deficit = peer.deficit.min(0);
        }
        let volume = find_or_add(&mut peer.queue, holder.volume);
        if volume.queue.is_empty() {
            volume.deficit = volume.deficit.min(0);
        }
        volume.queue.push_back(who);
    }

    /// One waits no more; false when it does not wait.
    pub(crate) fn wait_no_more(&mut self, holder: Holder, is: impl Fn(&W) -> bool) -> bool {
        let peer = self.peers.iter_mut().find(|peer| peer.key == holder.peer);
        let volume =
            peer.and_then(|peer| peer.queue.iter_mut().find(|one| one.key == holder.volume));
        let Some(volume) = volume else { return false };
        let Some(at) = volume.queue.iter().position(is) else { return false };
        volume.queue.remove(at);
        self.waiting -= 1;
        true
    }

    /// Gives a place to whose turn it is.
    pub(crate) fn grant(&mut self) -> Option<W> {
        let (at, within) = self.next()?;
        let peer = &mut self.peers[at];
        let volume = &mut peer.queue[within];
        let who = volume.queue.pop_front()?;
        for (held, deficit) in
            [(&mut peer.held, &mut peer.deficit), (&mut volume.held, &mut volume.deficit)]
        {
            *held += 1;
            *deficit -= self.quantum;
        }
        self.held += 1;
        self.waiting -= 1;
        to_the_end(&mut peer.queue, within);
        to_the_end(&mut self.peers, at);
        Some(who)
    }

    /// Forgets the costs of work that was done while nobody waited.
    fn forget_costs(&mut self) {
        for peer in &mut self.peers {
            peer.deficit = 0;
            peer.queue.iter_mut().for_each(|volume| volume.deficit = 0);
        }
    }

    /// A place is free again, after work that cost `cost`.
    pub(crate) fn give_back(&mut self, holder: Holder, cost: u64) {
        // A turn costs a quantum at least: with a refund, a peer with several connections that ask
        // for little would have all turns, since one that has a single connection saves nothing.
        let cost = i64::try_from(cost).unwrap_or(COST_MAX).min(COST_MAX);
        let more = cost.max(self.quantum) - self.quantum;
        self.held = self.held.saturating_sub(1);
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.key == holder.peer) else { return };
        peer.held = peer.held.saturating_sub(1);
        peer.deficit = peer.deficit.saturating_sub(more);
        if let Some(volume) = peer.queue.iter_mut().find(|volume| volume.key == holder.volume) {
            volume.held = volume.held.saturating_sub(1);
            volume.deficit = volume.deficit.saturating_sub(more);
        }
    }

    /// True when a waiting connection would get a place if `holder` gave one back.
    pub(crate) fn is_wanted(&self, holder: Holder) -> bool {
        let mut room = self.room();
        let of_holder = self.peers.iter().find(|peer| peer.key == holder.peer);
        room.held = room.held.saturating_sub(1);
        room.without += usize::from(of_holder.is_some_and(|peer| peer.held == 1));
        self.peers.iter().any(|peer| {
            let gives = usize::from(peer.key == holder.peer);
            let held = peer.held.saturating_sub(gives);
            let volumes = most(most(self.places, room.peers > 1), peer.queue.len() > 1);
            let has_room = |volume: &Flow<u64, VecDeque<W>>| {
                volume.held < volumes + gives * usize::from(volume.key == holder.volume)
            };
            held < room.most(held)
                && peer.queue.iter().any(|volume| !volume.queue.is_empty() && has_room(volume))
        })
    }

    /// True when anybody has a place.
    pub(crate) fn is_held(&self) -> bool {
        self.held > 0
    }

    /// True when another holder has a place.
    pub(crate) fn others_hold(&self, holder: Holder) -> bool {
        let of_peer = self.peers.iter().find(|peer| peer.key == holder.peer);
        let own =
            of_peer.and_then(|peer| peer.queue.iter().find(|volume| volume.key == holder.volume));
        self.held > own.map_or(0, |volume| volume.held)
    }

    /// True when a peer, or its volume, holds more than its share beside others: it got the places
    /// while it was alone.
    pub(crate) fn holds_too_many(&self, holder: Holder) -> bool {
        let room = self.room();
        let Some(peer) = self.peers.iter().find(|peer| peer.key == holder.peer) else {
            return false;
        };
        let volumes = most(most(self.places, room.peers > 1), peer.queue.len() > 1);
        peer.held > room.most(peer.held)
            || peer.queue.iter().any(|volume| volume.key == holder.volume && volume.held > volumes)
    }

    fn next(&mut self) -> Option<(usize, usize)> {
        if self.held >= self.places {
            return None;
        }
        let room = self.room();
        let peers = most(self.places, room.peers > 1);
        let ready = |volume: &Flow<u64, VecDeque<W>>, several: bool| {
            !volume.queue.is_empty() && volume.held < most(peers, several)
        };
        let peer = turn(&mut self.peers, self.quantum, |peer| {
            peer.held < room.most(peer.held)
                && peer.queue.iter().any(|volume| ready(volume, peer.queue.len() > 1))
        })?;
        let several = self.peers[peer].queue.len() > 1;
        let volume =
            turn(&mut self.peers[peer].queue, self.quantum, |volume| ready(volume, several))?;
        Some((peer, volume))
    }
}

fn find_or_add<K: PartialEq, Q: Default>(flows: &mut Vec<Flow<K, Q>>, key: K) -> &mut Flow<K, Q> {
    let at = flows.iter().position(|flow| flow.key == key).unwrap_or_else(|| {
        flows.push(Flow::new(key));
        flows.len() - 1
    });
    &mut flows[at]
}

/// Ends the turn of a flow that has no credit left: moves it behind all others.
fn to_the_end<K, Q>(flows: &mut [Flow<K, Q>], at: usize) {
    if flows[at].deficit <= 0 {
        flows[at..].rotate_left(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: u32 = 100;

    fn holder(peer: u32, volume: u64) -> Holder {
        Holder { peer: Peer::User(peer), volume }
    }

    /// Shares in which each waiting connection is represented by its holder.
    fn shares(places: usize, crowd: &[(Holder, usize)]) -> Shares<Holder> {
        let mut shares = Shares::new(places, QUANTUM);
        for &(holder, connections) in crowd {
            (0..connections).for_each(|_| shares.join(holder));
            (0..connections).for_each(|_| shares.wait(holder, holder));
        }
        shares
    }

    fn count(of: Holder, among: &[Holder]) -> usize {
        among.iter().filter(|holder| **holder == of).count()
    }

    fn granted(shares: &mut Shares<Holder>) -> Vec<Holder> {
        std::iter::from_fn(|| shares.grant()).collect()
    }

    /// So many turns one after the other, each at the cost of its holder, which waits again at
    /// once.
    fn turns(
        shares: &mut Shares<Holder>,
        turns: usize,
        cost: impl Fn(Holder) -> u64,
    ) -> Vec<Holder> {
        let mut took = granted(shares);
        let mut all = Vec::new();
        while all.len() < turns {
            let done = took.remove(0);
            shares.give_back(done, cost(done));
            shares.wait(done, done);
            took.extend(granted(shares));
            all.push(done);
        }
        for done in took {
            shares.give_back(done, cost(done));
            shares.wait(done, done);
        }
        all
    }

    #[test]
    fn rule_12_neither_peer_nor_volume_holds_more_than_half_beside_another() {
        let (a, b, c) = (holder(1, 1), holder(2, 1), holder(2, 2));
        assert_eq!(granted(&mut shares(8, &[(a, 30)])).len(), 8, "who is alone has all");
        assert_eq!(granted(&mut shares(8, &[(a, 30), (b, 1)])).len(), 4 + 1);
        let together = granted(&mut shares(8, &[(a, 30), (b, 30), (c, 30)]));
        assert_eq!([a, b, c].map(|of| count(of, &together)), [4, 2, 2]);
        assert_eq!(
            granted(&mut shares(1, &[(a, 3), (b, 3)])).len(),
            1,
            "there is always one that may"
        );
    }

    #[test]
    fn rule_12_who_came_first_gives_back_what_is_too_many() {
        let (a, b) = (holder(1, 1), holder(2, 1));
        let mut shares = shares(4, &[(a, 9)]);
        assert_eq!(granted(&mut shares), [a; 4]);
        assert!(
            shares.is_wanted(a)
                && !shares.holds_too_many(a)
                && !shares.others_hold(a)
                && shares.others_hold(b)
        );
        shares.join(b);
        assert!(
            !shares.is_wanted(a) && shares.holds_too_many(a),
            "another one of its own would not get it"
        );
        shares.wait(b, b);
        assert!(shares.is_wanted(a));
        shares.give_back(a, 100);
        assert_eq!(granted(&mut shares), [b]);
        shares.give_back(a, 100);
        assert_eq!(granted(&mut shares), [], "half of them stay free for the other");
        (0..9).for_each(|_| shares.leave(a));
        shares.wait(b, b);
        assert_eq!((granted(&mut shares), shares.alone()), (vec![b], true));
    }

    #[test]
    fn rule_12_several_peers_leave_a_place_for_each_that_holds_none() {
        let crowd = [holder(1, 1), holder(2, 1), holder(3, 1)];
        let (late, later) = (holder(4, 1), holder(5, 1));
        let mut shares = shares(8, &crowd.map(|of| (of, 30)));
        let mut took = granted(&mut shares);
        assert_eq!(took.len(), 8, "all of them are there, and have all");
        assert!(!crowd.iter().any(|of| shares.holds_too_many(*of)));
        shares.join(late);
        assert!(crowd.iter().all(|of| shares.holds_too_many(*of)), "one of them has to give way");
        assert!(!shares.is_wanted(took[0]), "but not before somebody waits whom it helps");
        shares.give_back(took.remove(0), 100);
        assert_eq!(granted(&mut shares), [], "the free place is that of the new peer");
        assert!(shares.hold_at_once(late) || shares.waiting > 0);
        shares.wait(late, late);
        assert_eq!(granted(&mut shares), [late]);
        shares.join(later);
        shares.wait(later, later);
        assert!(shares.is_wanted(took[0]));
        shares.give_back(took.remove(0), 100);
        assert_eq!(granted(&mut shares), [later]);
        let count = |of| took.iter().filter(|one| **one == of).count();
        assert_eq!(crowd.map(count).iter().sum::<usize>(), 6);
    }

    #[test]
    fn rule_12_peers_that_are_more_than_the_places_share_what_there_is() {
        let many = [1, 2, 3, 4, 5, 6, 7].map(|peer| holder(peer, 1));
        let mut shares = shares(4, &many.map(|of| (of, 3)));
        let took = granted(&mut shares);
        assert_eq!(took, many[..4], "one each");
        for of in many {
            (0..3).for_each(|_| {
                shares.wait_no_more(of, |one| *one == of);
            });
        }
        took.into_iter().for_each(|of| shares.give_back(of, 100));
        (0..3).for_each(|_| shares.wait(many[0], many[0]));
        assert_eq!(granted(&mut shares).len(), 2, "half stay free for the idle ones");
    }

    #[test]
    fn rule_12_a_peer_with_many_requests_has_no_more_turns_than_one_with_few() {
        let (flood, other) = (holder(1, 1), holder(2, 1));
        let mut shares = shares(1, &[(flood, 30)]);
        turns(&mut shares, 10, |_| 100);
        (0..2).for_each(|_| shares.join(other));
        (0..2).for_each(|_| shares.wait(other, other));
        let took = turns(&mut shares, 20, |_| 100);
        assert!(
            (9..=11).contains(&count(other, &took)),
            "it makes up for nothing, and then they take turns: {took:?}"
        );
    }

    #[test]
    fn rule_12_turns_are_shared_by_what_they_cost() {
        let (heavy, light, third) = (holder(1, 1), holder(2, 1), holder(2, 2));
        let mut two = shares(1, &[(heavy, 5), (light, 2)]);
        let took = turns(&mut two, 440, |of| if of == heavy { 1000 } else { 100 });
        assert!(
            (36..=44).contains(&count(heavy, &took)),
            "ten light turns for each heavy one: {}",
            count(heavy, &took)
        );
        let mut three = shares(2, &[(heavy, 5), (light, 5), (third, 5)]);
        let took = turns(&mut three, 400, |_| 100);
        assert!((190..=210).contains(&count(heavy, &took)), "{}", count(heavy, &took));
        assert!((95..=105).contains(&count(light, &took)), "{}", count(light, &took));
    }

    #[test]
    fn rule_12_turns_that_cost_nothing_keep_nobody_waiting() {
        let (many, one) = (holder(1, 1), holder(2, 1));
        for cost in [0, 1, 50, 100] {
            let mut two = shares(1, &[(many, 4), (one, 1)]);
            let took = turns(&mut two, 1000, |of| if of == many { cost } else { 50 });
            assert!((490..=510).contains(&count(one, &took)), "{cost}: {}", count(one, &took));
        }
    }

    #[test]
    fn who_asked_for_nothing_has_saved_nothing() {
        let (a, b) = (holder(1, 1), holder(2, 1));
        let mut shares = shares(1, &[(a, 3)]);
        shares.join(b);
        turns(&mut shares, 1000, |_| 50);
        shares.wait(b, b);
        let took = turns(&mut shares, 10, |_| 100);
        assert!(count(b, &took) <= 6, "{took:?}");
    }

    #[test]
    fn places_are_neither_lost_nor_made_whatever_happens() {
        let mut state = 7u64;
        let mut dice = |sides: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % sides
        };
        let mut shares: Shares<Holder> = Shares::new(5, QUANTUM);
        let (mut idle, mut waiting, mut working) = (Vec::new(), 0, Vec::new());
        for _ in 0..20_000 {
            let one = holder(dice(3) as u32, dice(3));
            match dice(4) {
                0 if idle.len() + waiting + working.len() < 40 => {
                    shares.join(one);
                    idle.push(one);
                }
                1 if !idle.is_empty() => {
                    shares.leave(idle.swap_remove(dice(idle.len() as u64) as usize))
                }
                2 if !idle.is_empty() => {
                    let one = idle.swap_remove(dice(idle.len() as u64) as usize);
                    shares.wait(one, one);
                    waiting += 1;
                }
                _ if !working.is_empty() => {
                    let one = working.swap_remove(dice(working.len() as u64) as usize);
                    shares.give_back(one, dice(1000));
                    idle.push(one);
                }
                _ => {}
            }
            let took = granted(&mut shares);
            waiting -= took.len();
            working.extend(took);
            assert!(working.len() == shares.held && shares.held <= 5);
            assert!(waiting == 0 || !working.is_empty(), "somebody waits, and nobody works");
        }
        idle.into_iter().chain(working).for_each(|one| shares.leave(one));
    }
}
