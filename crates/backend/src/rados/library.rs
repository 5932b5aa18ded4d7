//! The functions of librados that we use, found in the library when the first connection is made.
//!
//! *Invariant:* the library stays loaded until the process ends, so that its functions and threads
//! never lose their code.
#![allow(
    unsafe_code,
    reason = "the library is loaded and its functions are taken by name, with the types of its C \
              header, version 2"
)]

use std::{
    ffi::{c_char, c_int, c_void},
    sync::OnceLock,
};

use onefold_core::{Error, Kind, Result};

/// The name of the library in Debian and other systems.
const NAME: &str = "librados.so.2";

/// Pointers that only librados looks behind: a cluster, an I/O context, operations, a completion,
/// iterators, a cursor.
pub(super) type Handle = *mut c_void;

pub(super) type Text = *const c_char;
pub(super) type Callback = Option<unsafe extern "C" fn(Handle, Handle)>;

/// `struct timeval`.
#[repr(C)]
pub(super) struct TimeVal {
    pub(super) seconds: i64,
    pub(super) microseconds: i64,
}

/// `rados_object_list_item`.
#[repr(C)]
pub(super) struct ListItem {
    pub(super) name_bytes: usize,
    pub(super) name: *mut c_char,
    pub(super) namespace_bytes: usize,
    pub(super) namespace: *mut c_char,
    pub(super) locator_bytes: usize,
    pub(super) locator: *mut c_char,
}

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// librados; each function as its header documents it, without the `rados_` before its
        /// name.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load() -> Result<Library> {
                let failed = |e| {
                    let what = format!("{NAME} can't be loaded; Debian's package librados2 has it");
                    Error::new(Kind::Unsupported, what).caused_by(e)
                };
                let too_old = |e| {
                    let what = format!("{NAME} is too old; that of Ceph 16 or later is needed");
                    Error::new(Kind::Unsupported, what).caused_by(e)
                };
                // SAFETY: the library's initialisers have no conditions.
                let library = unsafe { libloading::Library::new(NAME) }.map_err(failed)?;
                let library: &'static libloading::Library = Box::leak(Box::new(library));
                Ok(Library {
                    $($name: {
                        let name = concat!("rados_", stringify!($name)).as_bytes();
                        // SAFETY: the type is that of the header.
                        *unsafe { library.get(name) }.map_err(too_old)?
                    },)*
                })
            }

            /// A library without a cluster, for tests: who calls a function that the test did not
            /// put in its place ends the process.
            #[cfg(test)]
            pub(super) fn missing() -> Library {
                $(unsafe extern "C" fn $name($(_: $argument),*) $(-> $result)? {
                    unimplemented!("rados_{} is not there", stringify!($name))
                })*
                Library { $($name,)* }
            }
        }
    };
}

functions! {
    create(*mut Handle, Text) -> c_int;
    conf_read_file(Handle, Text) -> c_int;
    conf_parse_env(Handle, Text) -> c_int;
    conf_set(Handle, Text, Text) -> c_int;
    conf_get(Handle, Text, *mut c_char, usize) -> c_int;
    connect(Handle) -> c_int;
    shutdown(Handle);
    getaddrs(Handle, *mut *mut c_char) -> c_int;
    buffer_free(*mut c_char);
    mon_command(
        Handle, *const Text, usize, Text, usize, *mut *mut c_char, *mut usize, *mut *mut c_char,
        *mut usize
    ) -> c_int;
    blocklist_add(Handle, *mut c_char, u32) -> c_int;
    wait_for_latest_osdmap(Handle) -> c_int;

    ioctx_create2(Handle, i64, *mut Handle) -> c_int;
    ioctx_destroy(Handle);

    create_write_op() -> Handle;
    release_write_op(Handle);
    write_op_assert_exists(Handle);
    write_op_assert_version(Handle, u64);
    write_op_create(Handle, c_int, Text);
    write_op_cmpxattr(Handle, Text, u8, Text, usize);
    write_op_omap_cmp(Handle, Text, u8, Text, usize, *mut c_int);
    write_op_setxattr(Handle, Text, Text, usize);
    write_op_write(Handle, Text, usize, u64);
    write_op_write_full(Handle, Text, usize);
    write_op_zero(Handle, u64, u64);
    write_op_remove(Handle);
    write_op_omap_set(Handle, *const Text, *const Text, *const usize, usize);
    write_op_omap_rm_keys(Handle, *const Text, usize);
    aio_write_op_operate(Handle, Handle, Handle, Text, *mut i64, c_int) -> c_int;

    create_read_op() -> Handle;
    release_read_op(Handle);
    read_op_assert_exists(Handle);
    read_op_stat(Handle, *mut u64, *mut i64, *mut c_int);
    read_op_read(Handle, u64, usize, *mut c_char, *mut usize, *mut c_int);
    read_op_getxattrs(Handle, *mut Handle, *mut c_int);
    read_op_omap_get_vals2(Handle, Text, Text, u64, *mut Handle, *mut u8, *mut c_int);
    read_op_omap_get_vals_by_keys(Handle, *const Text, usize, *mut Handle, *mut c_int);
    aio_read_op_operate(Handle, Handle, Handle, Text, c_int) -> c_int;
    getxattrs_next(Handle, *mut Text, *mut Text, *mut usize) -> c_int;
    getxattrs_end(Handle);
    omap_get_next(Handle, *mut *mut c_char, *mut *mut c_char, *mut usize) -> c_int;
    omap_get_end(Handle);

    aio_create_completion2(Handle, Callback, *mut Handle) -> c_int;
    aio_wait_for_complete(Handle) -> c_int;
    aio_get_return_value(Handle) -> c_int;
    aio_get_version(Handle) -> u64;
    aio_release(Handle);

    lock_exclusive(Handle, Text, Text, Text, Text, *mut TimeVal, u8) -> c_int;
    unlock(Handle, Text, Text, Text) -> c_int;
    break_lock(Handle, Text, Text, Text, Text) -> c_int;
    list_lockers(
        Handle, Text, Text, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize,
        *mut c_char, *mut usize, *mut c_char, *mut usize
    ) -> isize;

    object_list_begin(Handle) -> Handle;
    object_list_end(Handle) -> Handle;
    object_list_is_end(Handle, Handle) -> c_int;
    object_list_cursor_free(Handle, Handle);
    object_list_cursor_cmp(Handle, Handle, Handle) -> c_int;
    object_list_slice(Handle, Handle, Handle, usize, usize, *mut Handle, *mut Handle);
    object_list(Handle, Handle, Handle, usize, Text, usize, *mut ListItem, *mut Handle) -> c_int;
    object_list_free(usize, *mut ListItem);
}

/// librados, loaded once.
///
/// # Errors
/// `Unsupported` when it is not installed, or older than Ceph 16.
pub(super) fn library() -> Result<&'static Library> {
    static LOADED: OnceLock<Result<Library>> = OnceLock::new();
    LOADED.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}
