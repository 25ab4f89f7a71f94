//! A network namespace for a sidecar. It reaches the host through a second namespace, a router that
//! drops packets on request: real loss, and real silence, of which neither end of a connection is
//! notified.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use walhook::vault::random_bytes;

use super::proxy::Direction;

/// A part of the addresses that are reserved for tests of networks (RFC 2544).
pub const NETWORK: &str = "198.18.0.0/15";
const NAMESPACES: &str = "/run/netns";

/// The namespaces of the sidecar and of its router. Removed when dropped.
pub struct Namespace {
    name: String,
    /// The network of eight addresses that the links between sidecar, router and host have.
    network: u32,
}

impl Namespace {
    /// Returns None without root's rights or one of the programs `ip`, `nsenter` and `nft`.
    pub fn create() -> Option<Namespace> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let programs = ["ip", "nsenter", "nft"];
        let is_installed = |program: &str| {
            ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
                .iter()
                .any(|directory| Path::new(directory).join(program).is_file())
        };

        if !rustix::process::geteuid().is_root() || !programs.into_iter().all(is_installed) {
            return None;
        }

        remove_those_of_dead_processes();
        let process = std::process::id();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let network = u32::from(Ipv4Addr::new(198, 18, 0, 0))
            + ((u32::from(u16::from_be_bytes(random_bytes())) << 1) & !7);
        let namespace = Namespace {
            name: format!("walhook-{process}-{count}"),
            network,
        };

        namespace
            .build(&format!("wh{process}x{count}"))
            .then_some(namespace)
    }

    fn address(&self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.network + number)
    }

    /// Returns the host's address as the sidecar sees it: what the sidecar must reach listens
    /// there.
    pub fn host(&self) -> IpAddr {
        self.address(5).into()
    }

    /// Returns the sidecar's address as the host sees it.
    pub fn inside(&self) -> IpAddr {
        self.address(2).into()
    }

    /// Links sidecar, router and host. Returns false if the system does not allow that, as in most
    /// containers.
    fn build(&self, link: &str) -> bool {
        let Namespace { name, .. } = self;
        let [router, inside, host, gateway] = [1, 2, 5, 6].map(|number| self.address(number));
        let network = self.address(0);

        let commands = format!(
            "netns add {name}\n\
             netns add {name}-router\n\
             link add name {link} type veth peer name eth0 netns {name}-router\n\
             -n {name}-router link add name eth1 type veth peer name eth0 netns {name}\n\
             addr add {host}/30 dev {link}\n\
             link set {link} up\n\
             -n {name}-router addr add {gateway}/30 dev eth0\n\
             -n {name}-router link set eth0 up\n\
             -n {name}-router addr add {router}/30 dev eth1\n\
             -n {name}-router link set eth1 up\n\
             -n {name} addr add {inside}/30 dev eth0\n\
             -n {name} link set eth0 up\n\
             -n {name} link set lo up\n\
             -n {name} route add default via {router}\n\
             route add {network}/30 via {gateway}"
        );

        commands
            .lines()
            .all(|line| run(Command::new("ip").args(line.split(' '))))
            && run(self
                .at_router("sh")
                .args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]))
            && self.filter(
                "add table ip faults { chain forward { type filter hook forward priority 0; }; }\n",
            )
    }

    /// Returns a command that runs `program` in the sidecar's namespace, as the process that is
    /// spawned.
    pub fn command(&self, program: &Path) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("nsenter");
        command
            .arg(format!("--net={NAMESPACES}/{}", self.name))
            .arg(program);
        command
    }

    /// Drops this percentage of the packets in one direction between the sidecar and a port of the
    /// host.
    pub fn drop_packets(&self, port: u16, direction: Direction, percent: u8) {
        let end = match direction {
            Direction::ToServer => "dport",
            Direction::ToClient => "sport",
        };

        let share = format!("numgen random mod 100 < {percent}");
        let share = if percent < 100 { share.as_str() } else { "" };
        assert!(self.filter(&format!(
            "add rule ip faults forward tcp {end} {port} {share} counter drop\n"
        )));
    }

    /// Drops no more packets. Returns how many were dropped.
    pub fn heal(&self) -> u64 {
        let listed = self
            .at_router("nft")
            .args(["list", "table", "ip", "faults"])
            .output()
            .expect("nft starts");
        assert!(self.filter("flush chain ip faults forward\n"));

        let listed = String::from_utf8(listed.stdout).expect("a list in UTF-8");
        let words: Vec<&str> = listed.split_whitespace().collect();
        let counts = words
            .windows(2)
            .filter(|pair| pair[0] == "packets")
            .map(|pair| pair[1]);

        counts
            .map(|count| count.parse::<u64>().expect("a number of packets"))
            .sum()
    }

    fn at_router(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={NAMESPACES}/{}-router", self.name))
            .arg(program);
        command
    }

    fn filter(&self, rules: &str) -> bool {
        let mut command = self.at_router("nft");
        let Ok(mut process) = command
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
        else {
            return false;
        };

        let written = process
            .stdin
            .take()
            .is_some_and(|mut input| input.write_all(rules.as_bytes()).is_ok());
        process.wait().is_ok_and(|status| status.success()) && written
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
        remove(&format!("{}-router", self.name));
    }
}

fn run(command: &mut Command) -> bool {
    let ended = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    ended.is_ok_and(|status| status.success())
}

/// Removes a namespace, and its links with it.
fn remove(name: &str) {
    run(Command::new("ip").args(["netns", "delete", name]));
}

/// Removes what tests have left that were killed.
fn remove_those_of_dead_processes() {
    let Ok(entries) = std::fs::read_dir(NAMESPACES) else {
        return;
    };

    for name in entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
    {
        let process = name
            .strip_prefix("walhook-")
            .and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            remove(&name);
        }
    }
}
