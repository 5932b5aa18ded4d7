//! Stands in for `parking_lot`, as far as the block engine and the server use it: the same locks over shuttle, whose scheduler decides at each of
//! them which thread goes on. Threads are coroutines of one thread of the system, so a run is what its seed makes of it.
//!
//! A wait with a limit ends at once, as if its time were over: that may always happen, and who waits like this looks again. Waits without a limit end by
//! being woken and not otherwise, so that a wake-up that gets lost is a deadlock, which shuttle reports.

use std::{
    cell::Cell,
    fmt,
    ops::{Deref, DerefMut},
    sync::{LockResult, PoisonError},
    time::{Duration, Instant},
};

use shuttle::sync;

/// Threads, of which the scheduler always gives another.
pub mod thread {
    use std::io;

    pub use shuttle::thread::*;

    /// Starts a thread that ends with its scope.
    #[derive(Default)]
    pub struct Builder;

    impl Builder {
        /// A thread as `std` makes it.
        pub fn new() -> Builder {
            Builder
        }

        /// Does nothing: a schedule names no threads.
        #[must_use]
        pub fn name(self, _: String) -> Builder {
            self
        }

        /// Starts it.
        pub fn spawn_scoped<'scope, F, T>(
            self,
            scope: &'scope Scope<'scope, '_>,
            work: F,
        ) -> io::Result<ScopedJoinHandle<'scope, T>>
        where
            F: FnOnce() -> T + Send + 'scope,
            T: Send + 'scope,
        {
            Ok(scope.spawn(work))
        }
    }
}

thread_local! {
    static PLANTED: Cell<&'static str> = const { Cell::new("") };
}

/// Plants a mistake in all runs of this test from now on.
pub fn plant(mistake: &'static str) {
    PLANTED.set(mistake);
}

/// Whether a test planted this mistake.
pub fn planted(mistake: &str) -> bool {
    PLANTED.get() == mistake
}

/// What is locked, whether or not somebody panicked in it.
fn sound<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// A lock for one.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

/// A lock that is held.
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    /// Gone only while a condition is waited for.
    held: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> T {
        sound(self.0.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { lock: self, held: Some(sound(self.0.lock())) }
    }

    /// The lock, when nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|held| MutexGuard { lock: self, held: Some(held) })
    }

    /// The same; no time passes here.
    pub fn try_lock_for(&self, _: Duration) -> Option<MutexGuard<'_, T>> {
        self.try_lock()
    }

    /// The value.
    pub fn get_mut(&mut self) -> &mut T {
        sound(self.0.get_mut())
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex { .. }")
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Does something without the lock.
    pub fn unlocked<U>(guard: &mut MutexGuard<'a, T>, does: impl FnOnce() -> U) -> U {
        guard.held = None;
        let value = does();
        guard.held = Some(sound(guard.lock.0.lock()));
        value
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("the lock is held")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("the lock is held")
    }
}

/// A lock for one who writes or many who read.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

/// Held for reading.
pub type RwLockReadGuard<'a, T> = sync::RwLockReadGuard<'a, T>;

/// Held for writing.
pub type RwLockWriteGuard<'a, T> = sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        sound(self.0.read())
    }

    /// Waits until nobody reads or writes.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        sound(self.0.write())
    }

    /// The lock, when nobody writes.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    /// The lock, when nobody has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }

    /// The value.
    pub fn get_mut(&mut self) -> &mut T {
        sound(self.0.get_mut())
    }
}

impl<T: ?Sized> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLock { .. }")
    }
}

/// Whether a wait ended by its limit.
#[derive(Clone, Copy, Debug)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// It did.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// Waiting to be woken.
#[derive(Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    /// Waits without the lock until woken.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.held.take() {
            guard.held = Some(sound(self.0.wait(held)));
        }
    }

    /// Waits as long as a condition holds.
    pub fn wait_while<T>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// Lets others go on, and takes the time for over.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
        MutexGuard::unlocked(guard, thread::yield_now);
        WaitTimeoutResult(true)
    }

    /// Lets others go on once, and takes the time for over.
    pub fn wait_while_until<T>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool, _: Instant) -> WaitTimeoutResult {
        MutexGuard::unlocked(guard, thread::yield_now);
        WaitTimeoutResult(condition(guard))
    }

    /// Wakes one who waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
