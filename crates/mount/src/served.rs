//! Requests as the kernel gives them: one thread takes them, and others answer them in turns. What
//! needs no more than a look into memory it answers itself.

use std::{ffi::OsStr, sync::Arc};

use fuser::{
    FileHandle, Filesystem, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyXattr, Request,
};

use super::{
    files::{Files, answer},
    turns::Turns,
};

/// Reads ahead that the kernel hands out at one time: those that wait there have no turns.
const BACKGROUND: u16 = 1024;

/// The file system, answered in turns.
pub(crate) struct Served {
    files: Arc<Files>,
    turns: Arc<Turns>,
}

impl Served {
    pub(crate) fn new(files: Files, turns: &Arc<Turns>) -> Served {
        Served { files: Arc::new(files), turns: turns.clone() }
    }

    fn later(&self, request: &Request, work: impl FnOnce(&Files) + Send + 'static) {
        let files = self.files.clone();
        self.turns.add(request.uid(), Box::new(move || work(&files)));
    }
}

impl Filesystem for Served {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // A kernel that lacks one works without it.
        let flags = [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Else a path through a link asks for its target each time.
            InitFlags::FUSE_CACHE_SYMLINKS,
        ];
        for flag in flags {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.later(request, move |files| files.lookup(parent, &name, reply));
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.files.forget(number, lookups);
    }

    fn getattr(&self, request: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.later(request, move |files| files.getattr(number, reply));
    }

    fn readlink(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        self.later(request, move |files| files.readlink(number, reply));
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.files.open(flags, reply);
    }

    fn read(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.later(request, move |files| files.read(number, offset, size, reply));
    }

    fn opendir(&self, request: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let user = request.uid();
        self.later(request, move |files| files.opendir(user, number, reply));
    }

    fn readdir(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.later(request, move |files| files.readdir(number, handle, offset, reply));
    }

    fn readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.later(request, move |files| files.readdirplus(number, handle, offset, reply));
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.files.releasedir(handle, reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.files.statfs(reply);
    }

    fn getxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if self.files.is_bare(number) {
            return reply.error(self.files.has_none(name));
        }
        let name = name.to_owned();
        self.later(request, move |files| files.getxattr(number, &name, size, reply));
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        if self.files.is_bare(number) {
            return answer(reply, size, &[]);
        }
        let is_root = request.uid() == 0;
        self.later(request, move |files| files.listxattr(number, is_root, size, reply));
    }
}
