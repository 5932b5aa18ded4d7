//! Memory for keys. Where the process has memory that is neither swapped nor dumped, keys lie in it;
//! else they lie on the heap. Either way they are overwritten when they are dropped.

use std::{ops::Deref, sync::OnceLock};

use zeroize::Zeroize;

/// The place of one value, which is overwritten when it is dropped.
pub trait Cell<T>: Send + Sync {
    /// The value.
    fn get(&self) -> &T;

    /// The value, to be changed.
    fn get_mut(&mut self) -> &mut T;
}

/// Gives places for keys, which are zero at first.
pub trait KeyMemory: Send + Sync {
    /// For a key; `None` when there is no memory.
    fn key(&self) -> Option<Box<dyn Cell<[u8; 32]>>>;

    /// For a table that is made of a key; `None` when there is no memory.
    fn table(&self) -> Option<Box<dyn Cell<[u64; 256]>>>;
}

static MEMORY: OnceLock<Box<dyn KeyMemory>> = OnceLock::new();

/// From now on keys of this process lie in this memory. Only the first call counts.
pub fn keep_keys_in(memory: Box<dyn KeyMemory>) {
    // Another call would give the same kind of memory.
    let _ = MEMORY.set(memory);
}

struct Heap<T: Zeroize + Send + Sync>(Box<T>);

impl<T: Zeroize + Send + Sync> Cell<T> for Heap<T> {
    fn get(&self) -> &T {
        &self.0
    }

    fn get_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Zeroize + Send + Sync> Drop for Heap<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// 32 secret bytes. They can't be printed or copied by accident:
///
/// ```compile_fail
/// fn wants<T: std::fmt::Debug>() {}
/// wants::<onefold_core::key_memory::Key>();
/// ```
///
/// ```compile_fail
/// fn wants<T: Clone>() {}
/// wants::<onefold_core::key_memory::Key>();
/// ```
pub struct Key(Box<dyn Cell<[u8; 32]>>);

impl Key {
    /// All bytes zero.
    #[must_use]
    pub fn zero() -> Key {
        let kept = MEMORY.get().and_then(|memory| memory.key());
        Key(kept.unwrap_or_else(|| Box::new(Heap(Box::new([0; 32])))))
    }

    /// These bytes.
    #[must_use]
    pub fn of(bytes: &[u8; 32]) -> Key {
        let mut key = Key::zero();
        key.get_mut().copy_from_slice(bytes);
        key
    }

    /// The bytes, to be changed.
    pub fn get_mut(&mut self) -> &mut [u8; 32] {
        self.0.get_mut()
    }
}

impl Deref for Key {
    type Target = [u8; 32];

    fn deref(&self) -> &[u8; 32] {
        self.0.get()
    }
}

/// 256 secret numbers.
///
/// ```compile_fail
/// fn wants<T: std::fmt::Debug>() {}
/// wants::<onefold_core::key_memory::Table>();
/// ```
///
/// ```compile_fail
/// fn wants<T: Clone>() {}
/// wants::<onefold_core::key_memory::Table>();
/// ```
pub struct Table(Box<dyn Cell<[u64; 256]>>);

impl Table {
    /// Each number as `make` says.
    #[must_use]
    pub fn of(make: impl Fn(u8) -> u64) -> Table {
        let kept = MEMORY.get().and_then(|memory| memory.table());
        let mut table = kept.unwrap_or_else(|| Box::new(Heap(Box::new([0; 256]))));
        (0..=255).zip(table.get_mut()).for_each(|(n, number)| *number = make(n));
        Table(table)
    }
}

impl Deref for Table {
    type Target = [u64; 256];

    fn deref(&self) -> &[u64; 256] {
        self.0.get()
    }
}
