//! One virtual machine under qemu, which emulates its processor, and what it says on its console.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use crate::{
    guests::kernel::WRITERS,
    product::path,
    program::{Running, program, spawn},
};

/// Longest that a virtual machine may take to boot, or to come on.
const PATIENCE: Duration = Duration::from_secs(180);

/// How a virtual machine reaches its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// qemu's NBD client on the UNIX socket. A lost connection is an error for the guest.
    Qemu,
    /// The same; qemu connects again, and the guest learns nothing. `cache` is whether the disk
    /// tells the guest that it has a cache, which the guest then flushes.
    QemuReconnecting { cache: bool },
    /// The NBD client of the guest's own kernel, over TCP.
    Kernel,
    /// The guest shares its memory with the server (vhost-user-blk). qemu connects again.
    Vhost,
}

impl Way {
    /// True when a guest goes on after its server was killed.
    pub(super) fn goes_on(self) -> bool {
        matches!(self, Way::QemuReconnecting { .. } | Way::Vhost)
    }
}

/// MiB of a guest's memory.
const MEMORY: &str = "192";

/// Writes that were acknowledged to the programs of a guest: the last one of each writer.
pub(super) type Acknowledged = BTreeMap<u64, u64>;

/// What a virtual machine is started with.
pub(super) struct Parts<'a> {
    pub(super) kernel: &'a Path,
    pub(super) initramfs: &'a Path,
    pub(super) socket: &'a Path,
    pub(super) address: &'a str,
    /// The socket of a device.
    pub(super) device: &'a Path,
}

/// A virtual machine at work. Dropping it ends it as a power cut would.
pub(super) struct VirtualMachine {
    qemu: Running,
    console: PathBuf,
    log: PathBuf,
}

impl VirtualMachine {
    /// Starts one whose disk is the volume, and returns when the program on the disk runs. Its
    /// console is a new file.
    pub(super) fn boot(
        parts: &Parts,
        way: Way,
        volume: &str,
        console: &Path,
    ) -> Result<VirtualMachine> {
        let _ = fs::remove_file(console);
        let log = console.with_extension("qemu");
        let mut command = program("qemu-system-x86_64");
        command.args(["-accel", "tcg", "-m", MEMORY, "-nodefaults", "-no-user-config"]);
        command.args(["-no-reboot", "-display", "none"]);
        command.args(["-serial", &format!("file:{}", path(console))]);
        command.args(["-kernel", path(parts.kernel), "-initrd", path(parts.initramfs)]);
        let disk = if way == Way::Kernel { "nbd0" } else { "vda" };
        // The kernel's trial of its timer fails when the host is busy.
        let line = format!(
            "console=ttyS0 quiet panic=-1 no_timer_check onefold.disk={disk} onefold.export={volume}"
        );
        command.args(["-append", &line]).args(devices(parts, way, volume));
        let file = fs::File::create(&log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let qemu = spawn(&mut command)?;
        let mut machine = VirtualMachine { qemu, console: console.to_owned(), log };
        machine.wait("does not boot", |machine| machine.says("BOOTED"))?;
        Ok(machine)
    }

    /// Waits until each writer got so many acknowledgements more than it had.
    pub(super) fn come_on(&mut self, from: &Acknowledged, writes: u64) -> Result<()> {
        self.wait("does not come on", |machine| {
            let now = machine.acknowledged();
            (1..=WRITERS).all(|writer| {
                now.get(&writer).is_some_and(|n| *n >= from.get(&writer).unwrap_or(&0) + writes)
            })
        })
    }

    /// All that was acknowledged until now, by its console.
    pub(super) fn acknowledged(&self) -> Acknowledged {
        let mut last = Acknowledged::new();
        for line in self.said().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["ACK", writer, n] = words[..]
                && let (Ok(writer), Ok(n)) = (writer.parse(), n.parse::<u64>())
            {
                let newest = last.entry(writer).or_default();
                *newest = n.max(*newest);
            }
        }
        last
    }

    /// Waits until its file system has told the disk what is free twice more: once at least from the
    /// beginning to the end.
    pub(super) fn trimmed(&mut self) -> Result<()> {
        let enough = self.trims() + 2;
        self.wait("does not trim", |machine| machine.trims() >= enough)
    }

    fn trims(&self) -> usize {
        self.said().lines().filter(|line| line.trim() == "TRIMMED").count()
    }

    /// Waits until its disk has so many sectors.
    pub(super) fn grown(&mut self, sectors: u64) -> Result<()> {
        let size = format!("SIZE {sectors}");
        self.wait("does not learn that its disk has grown", |machine| machine.says(&size))
    }

    /// Fails when a program in it had an error.
    pub(super) fn well(&self) -> Result<()> {
        ensure!(!self.says("FAILED"), "a write failed in the guest:\n{}", self.said());
        Ok(())
    }

    fn says(&self, word: &str) -> bool {
        self.said().lines().any(|line| line.trim().starts_with(word))
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    fn wait(&mut self, what: &str, done: impl Fn(&VirtualMachine) -> bool) -> Result<()> {
        let begun = Instant::now();
        while !done(self) {
            let ended = self.qemu.wait(Duration::ZERO)?;
            if ended.is_some() || begun.elapsed() > PATIENCE {
                bail!(
                    "the guest {what} ({}):\n{}\n{}",
                    ended.map_or("it runs".into(), |status| status.to_string()),
                    self.said(),
                    fs::read_to_string(&self.log).unwrap_or_default()
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends it as a power cut would.
    pub(super) fn kill(mut self) {
        self.qemu.kill();
    }
}

/// The disk, or the network to one.
fn devices(parts: &Parts, way: Way, volume: &str) -> Vec<String> {
    let (reconnect, cache) = match way {
        Way::Kernel => return network(parts),
        Way::Vhost => return shared_memory(parts),
        Way::Qemu => ("", true),
        Way::QemuReconnecting { cache } => (",reconnect-delay=120", cache),
    };
    vec![
        "-blockdev".into(),
        format!(
            "driver=nbd,node-name=disk,server.type=unix,server.path={},export={volume}{reconnect}",
            path(parts.socket)
        ),
        "-device".into(),
        format!("virtio-blk-pci,drive=disk,write-cache={}", if cache { "on" } else { "off" }),
    ]
}

/// A disk whose server has the guest's memory.
fn shared_memory(parts: &Parts) -> Vec<String> {
    vec![
        "-object".into(),
        format!("memory-backend-memfd,id=mem,size={MEMORY}M,share=on"),
        "-machine".into(),
        "pc,memory-backend=mem".into(),
        "-chardev".into(),
        format!("socket,id=disk,path={},reconnect=1", path(parts.device)),
        "-device".into(),
        "vhost-user-blk-pci,chardev=disk".into(),
    ]
}

/// A network in which there is one thing: the server's address on this host.
fn network(parts: &Parts) -> Vec<String> {
    let (host, port) = parts.address.rsplit_once(':').unwrap_or(("127.0.0.1", parts.address));
    vec![
        "-netdev".into(),
        format!(
            "user,id=net,restrict=on,guestfwd=tcp:10.0.2.100:10809-cmd:busybox nc {host} {port}"
        ),
        "-device".into(),
        "virtio-net-pci,netdev=net,romfile=".into(),
    ]
}
