//! The virtual machines' programs: Debian's kernel, an initramfs of busybox and nbd-client, and the
//! golden image.

use std::{
    fs,
    io::Write,
    os::unix::fs::{OpenOptionsExt, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    machine, packages,
    product::path,
    program::{program, run},
};

/// The package that depends on Debian's newest kernel for virtual machines.
const META: &str = "linux-image-cloud-amd64";

/// Files of modules that the virtual machine needs, by the end of their directory and the begin of
/// their name.
const MODULES: [(&str, &str); 6] = [
    ("drivers/virtio", "virtio"),
    ("drivers/block", "virtio_blk"),
    ("drivers/block", "nbd"),
    ("drivers/net", "virtio_net"),
    ("drivers/net", "net_failover"),
    ("net/core", "failover"),
];

/// Writers of the golden image's program.
pub(super) const WRITERS: u64 = 3;

const LIMIT: Duration = Duration::from_secs(60);

/// A kernel and its modules.
pub(super) struct Kernel {
    /// What qemu starts.
    pub(super) image: PathBuf,
    /// The directory that is named like its version.
    modules: PathBuf,
}

impl Kernel {
    /// Debian's kernel. It is unpacked below `target/` and not installed: this host starts another
    /// one.
    pub(super) fn get() -> Result<Kernel> {
        let tools = machine::root().join("target/tools");
        let there = tools.join("guest-kernel");
        if !there.exists() {
            let new = tools.join("guest-kernel.new");
            let _ = fs::remove_dir_all(&new);
            packages::unpack(META, "linux-image-", &new)?;
            fs::rename(&new, &there)?;
        }
        Ok(Kernel {
            image: only(&there.join("boot"), "vmlinuz-")?,
            modules: only(&there.join("lib/modules"), "")?,
        })
    }

    /// Makes the initramfs in a file; `tree` is a new directory for what is in it.
    pub(super) fn initramfs(&self, tree: &Path, file: &Path) -> Result<()> {
        for directory in ["bin", "sbin", "proc", "sys", "dev", "newroot"] {
            fs::create_dir_all(tree.join(directory))?;
        }
        copy_program("busybox", tree)?;
        copy_program("nbd-client", tree)?;
        write_program(&tree.join("init"), include_str!("init.sh"))?;
        self.copy_modules(tree)?;
        let script =
            format!("cd '{}' && find . | busybox cpio -o -H newc > '{}'", path(tree), path(file));
        let mut command = program("sh");
        command.args(["-c", &script]);
        run(command, LIMIT).map(|_| ())
    }

    fn copy_modules(&self, tree: &Path) -> Result<()> {
        let version = self.modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let into = tree.join("lib/modules").join(&version);
        let mut copied = 0;
        for (directory, begin) in MODULES {
            let from = self.modules.join("kernel").join(directory);
            let to = into.join("kernel").join(directory);
            fs::create_dir_all(&to)?;
            for entry in fs::read_dir(&from).with_context(|| path(&from).to_owned())?.flatten() {
                if entry.file_name().to_string_lossy().starts_with(begin) {
                    fs::copy(entry.path(), to.join(entry.file_name()))?;
                    copied += 1;
                }
            }
        }
        ensure!(copied >= MODULES.len(), "{META} has only {copied} of the modules");
        let mut command = program("busybox");
        command.args(["depmod", "-b", path(tree), &version]).stdout(Stdio::null());
        run(command, LIMIT).map(|_| ())
    }
}

/// Makes the golden image, an ext4 file system that virtual machines boot from; `tree` is a new
/// directory for what is in it.
pub(super) fn golden_image(tree: &Path, image: &Path, mebibytes: u64) -> Result<()> {
    for directory in ["sbin", "proc", "sys", "dev", "work", "noise"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    for writer in 1..=WRITERS {
        let directory = tree.join("work").join(writer.to_string());
        fs::create_dir(&directory)?;
        fs::write(directory.join("count"), "000000000\n")?;
    }
    copy_program("busybox", tree)?;
    for applet in [
        "mount", "yes", "head", "sync", "printf", "dd", "sed", "sleep", "usleep", "rm", "fstrim",
        "cat",
    ] {
        symlink("busybox", tree.join("bin").join(applet))?;
    }
    write_program(&tree.join("sbin/init"), include_str!("work.sh"))?;
    let mut command = program("mke2fs");
    command.args(["-q", "-t", "ext4", "-b", "4096", "-d", path(tree), path(image)]);
    command.arg(format!("{mebibytes}M"));
    run(command, LIMIT).map(|_| ())
}

/// The file in a directory whose name begins so.
fn only(directory: &Path, begin: &str) -> Result<PathBuf> {
    fs::read_dir(directory)
        .with_context(|| format!("reading {}", directory.display()))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(begin)))
        .with_context(|| format!("there is no {begin}… in {}", directory.display()))
}

fn write_program(file: &Path, script: &str) -> Result<()> {
    let mut options = fs::File::options();
    options.write(true).create_new(true).mode(0o755);
    options.open(file)?.write_all(script.as_bytes()).context("the program of a guest")
}

/// Copies a program into `bin` of a tree, and the libraries that it is linked with to where it
/// looks for them.
fn copy_program(name: &str, tree: &Path) -> Result<()> {
    let from = machine::find(name).with_context(|| format!("there is no {name}"))?;
    fs::create_dir_all(tree.join("bin"))?;
    fs::copy(&from, tree.join("bin").join(name))?;
    let mut command = program("ldd");
    command.arg(&from);
    let linked = crate::program::finish(command, LIMIT, false)?.output;
    for library in linked.split_whitespace().filter(|word| word.starts_with('/')) {
        let library = library.trim_end_matches(':');
        let to = tree.join(library.trim_start_matches('/'));
        if Path::new(library) == from || to.exists() {
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(tree))?;
        fs::copy(library, &to).with_context(|| format!("copying {library}"))?;
    }
    Ok(())
}
