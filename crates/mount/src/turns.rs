//! Whose request is answered next. Users take turns, and none has more than half of the threads: a
//! user whose requests are many, or take long, keeps others waiting for no more than one of theirs.

use std::collections::{HashMap, VecDeque};

use parking_lot::{Condvar, Mutex};

/// A request, ready to be answered.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Requests that wait, and threads that answer them.
pub(crate) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
    /// Threads for one user.
    share: usize,
}

#[derive(Default)]
struct State {
    users: HashMap<u32, User>,
    /// Users who wait, the next one first.
    order: VecDeque<u32>,
    has_ended: bool,
}

/// A user who waits, or whose requests are being answered.
#[derive(Default)]
struct User {
    waits: VecDeque<Work>,
    at_work: usize,
}

impl Turns {
    /// For so many threads that [`work`](Self::work).
    pub(crate) fn new(threads: usize) -> Turns {
        Turns { state: Mutex::default(), changed: Condvar::new(), share: (threads / 2).max(1) }
    }

    /// Adds a request of a user.
    pub(crate) fn add(&self, user: u32, work: Work) {
        let mut state = self.state.lock();
        let waits = &mut state.users.entry(user).or_default().waits;
        waits.push_back(work);
        if waits.len() == 1 {
            state.order.push_back(user);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Answers requests until the [`end`](Self::end), and all that came before it.
    pub(crate) fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((user, work)) = state.next(self.share) {
                drop(state);
                work();
                state = self.state.lock();
                state.done(user);
                // A request of the same user may have waited for this one.
                self.changed.notify_one();
            } else if state.has_ended && state.order.is_empty() {
                return;
            } else {
                self.changed.wait(&mut state);
            }
        }
    }

    /// No request comes any more.
    pub(crate) fn end(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }
}

impl State {
    /// The next request of the first user who has not his share of the threads.
    fn next(&mut self, share: usize) -> Option<(u32, Work)> {
        for _ in 0..self.order.len() {
            let number = self.order.pop_front()?;
            let Some(user) = self.users.get_mut(&number) else { continue };
            if user.at_work >= share {
                self.order.push_back(number);
                continue;
            }
            let Some(work) = user.waits.pop_front() else { continue };
            user.at_work += 1;
            if !user.waits.is_empty() {
                self.order.push_back(number);
            }
            return Some((number, work));
        }
        None
    }

    fn done(&mut self, number: u32) {
        if let Some(user) = self.users.get_mut(&number) {
            user.at_work -= 1;
            if user.at_work == 0 && user.waits.is_empty() {
                self.users.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            mpsc::{channel, sync_channel},
        },
        time::Duration,
    };

    use super::*;

    fn threads(turns: &Arc<Turns>, count: usize) -> Vec<std::thread::JoinHandle<()>> {
        let turns = || turns.clone();
        (0..count).map(|_| turns()).map(|turns| std::thread::spawn(move || turns.work())).collect()
    }

    #[test]
    fn rule_12_a_user_of_a_mount_whose_requests_take_for_ever_keeps_no_other_one_waiting() {
        let turns = Arc::new(Turns::new(4));
        let workers = threads(&turns, 4);
        let (open, gate) = sync_channel::<()>(0);
        let gate = Arc::new(Mutex::new(gate));
        for _ in 0..20 {
            let gate = gate.clone();
            turns.add(1, Box::new(move || assert!(gate.lock().recv().is_err())));
        }
        let (said, heard) = channel();
        for n in 0..10 {
            let said = said.clone();
            turns.add(2, Box::new(move || said.send(n).unwrap()));
        }
        for _ in 0..10 {
            heard.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        drop(open);
        turns.end();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(turns.state.lock().users.is_empty());
    }

    #[test]
    fn users_take_turns() {
        let turns = Turns::new(2);
        let order = Arc::new(Mutex::new(Vec::new()));
        for user in [1, 1, 1, 1, 2, 3, 2] {
            let order = order.clone();
            turns.add(user, Box::new(move || order.lock().push(user)));
        }
        turns.end();
        turns.work();
        assert_eq!(*order.lock(), [1, 2, 3, 1, 2, 1, 1]);
    }
}
