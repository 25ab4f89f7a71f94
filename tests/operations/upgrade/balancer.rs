//! nginx in front of the replicas. Like an ingress controller, it sends requests to those whose
//! `/readyz` answers 200. A request that fails at one replica is not retried at the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use walhook::private_postgres::free_port;

use crate::support::{Sidecar, eventually, fetch};

/// Between two checks of the replicas' readiness.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub struct Balancer {
    nginx: Child,
    directory: TempDir,
    replicas: Arc<Mutex<Vec<Replica>>>,
    controller: JoinHandle<()>,
    /// The management API, behind the balancer.
    pub api_url: String,
}

#[derive(Clone)]
struct Replica {
    /// Host and port of the API.
    address: String,
    readyz: String,
}

impl Balancer {
    pub async fn start(replicas: &[Sidecar]) -> Balancer {
        let directory = tempfile::tempdir().expect("a directory");
        let listen = format!("127.0.0.1:{}", free_port().expect("a free port"));

        fs::write(directory.path().join("nginx.conf"), configuration(&listen)).expect("nginx.conf");
        let replicas: Vec<Replica> = replicas.iter().map(Replica::of).collect();

        write_upstreams(directory.path(), &replicas);

        let nginx = Command::new(program())
            .arg("-p")
            .arg(directory.path())
            .args(["-c", "nginx.conf"])
            .stdin(Stdio::null())
            .spawn()
            .expect("nginx, of Debian's package nginx");

        let replicas = Arc::new(Mutex::new(replicas));
        let pid = Pid::from_child(&nginx);
        let api_url = format!("http://{listen}/api/public");

        // A signal to an nginx that is still starting would end it.
        eventually("nginx to answer", || fetch(&api_url)).await;
        let controller = tokio::spawn(control(replicas.clone(), directory.path().to_owned(), pid));
        Balancer {
            nginx,
            directory,
            replicas,
            controller,
            api_url,
        }
    }

    /// Adds a replica, which gets requests when it is ready.
    pub fn add(&self, replica: &Sidecar) {
        self.replicas
            .lock()
            .expect("nobody panics with this lock")
            .push(Replica::of(replica));
    }

    pub fn errors(&self) -> String {
        fs::read_to_string(self.directory.path().join("error.log")).unwrap_or_default()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.controller.abort();
        // SIGTERM also ends its workers. SIGKILL would leave them running.
        let _ = kill_process(Pid::from_child(&self.nginx), Signal::TERM);
        let _ = self.nginx.wait();
    }
}

impl Replica {
    fn of(sidecar: &Sidecar) -> Replica {
        let address = sidecar
            .api_url
            .trim_start_matches("http://")
            .split('/')
            .next()
            .expect("a host")
            .to_owned();
        Replica {
            address,
            readyz: format!("{}/readyz", sidecar.metrics_url),
        }
    }
}

/// Returns the path of nginx, which is not in the `PATH` of ordinary users.
fn program() -> PathBuf {
    let packaged = PathBuf::from("/usr/sbin/nginx");
    if packaged.is_file() {
        packaged
    } else {
        "nginx".into()
    }
}

fn configuration(listen: &str) -> String {
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };

    format!(
        "daemon off; {user} worker_processes 2; pid nginx.pid; error_log error.log warn;
         events {{ worker_connections 512; }}
         http {{
             access_log off; client_body_temp_path body; proxy_temp_path proxy;
             fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
             include upstreams.conf;
             server {{
                 listen {listen};
                 location / {{
                     proxy_pass http://walhook; proxy_http_version 1.1; proxy_set_header Connection '';
                     proxy_next_upstream off;
                 }}
             }}
         }}"
    )
}

/// Connections are kept alive, as in production.
fn write_upstreams(directory: &Path, replicas: &[Replica]) {
    let servers: String = replicas
        .iter()
        .map(|replica| format!("server {} max_fails=0; ", replica.address))
        .collect();
    let text = format!("upstream walhook {{ {servers} keepalive 16; }}");
    fs::write(directory.join("upstreams.conf"), text).expect("upstreams.conf");
}

async fn control(replicas: Arc<Mutex<Vec<Replica>>>, directory: PathBuf, nginx: Pid) {
    let mut before: Vec<String> = Vec::new();

    loop {
        let known = replicas
            .lock()
            .expect("nobody panics with this lock")
            .clone();
        let mut ready = Vec::new();

        for replica in known {
            if matches!(fetch(&replica.readyz).await, Some((200, _))) {
                ready.push(replica);
            }
        }

        let addresses: Vec<String> = ready
            .iter()
            .map(|replica| replica.address.clone())
            .collect();
        if !ready.is_empty() && addresses != before {
            write_upstreams(&directory, &ready);
            kill_process(nginx, Signal::HUP).expect("nginx runs");
            before = addresses;
        }

        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
