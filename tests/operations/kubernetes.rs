//! The Helm chart and the manifest for Kubernetes: what they render, and the binary run as in their
//! pods.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde_json::Value;
use tokio::process::Command;
use walhook::deliver::guard::Guard;
use walhook::private_postgres::Options;

use crate::support::{Sidecar, TestApp, are_installed, skip};

const MANIFEST: &str = "deploy/kubernetes/walhook.yaml";
const CHART: &str = "deploy/helm/walhook";
const RULES: &str = "deploy/prometheus/walhook.rules.yml";
const DASHBOARD: &str = "deploy/grafana/walhook.json";
/// Secret settings, the variable that names their file, and the chart's value.
const SECRETS: [(&str, &str, &str); 8] = [
    ("source.log_url", "WALHOOK_SOURCE__LOG_URL_FILE", "logUrl"),
    ("source.url", "WALHOOK_SOURCE__URL_FILE", "sourceUrl"),
    ("store.url", "WALHOOK_STORE__URL_FILE", "storeUrl"),
    (
        "secrets.master_key",
        "WALHOOK_SECRETS__MASTER_KEY_FILE",
        "masterKey",
    ),
    ("mail.smtp_url", "WALHOOK_MAIL__SMTP_URL_FILE", "smtpUrl"),
    ("delivery.proxy", "WALHOOK_DELIVERY__PROXY_FILE", "proxyUrl"),
    (
        "auth.jwt.secret",
        "WALHOOK_AUTH__JWT__SECRET_FILE",
        "jwtSecret",
    ),
    (
        "tracing.headers",
        "WALHOOK_TRACING__HEADERS_FILE",
        "tracingHeaders",
    ),
];
const MASTER_KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const MINIMUM: &str = "secrets: { sourceUrl: postgres://db/platform, storeUrl: postgres://db/walhook, masterKey: MDEy }";

fn can_render() -> bool {
    const LIBRARY: &str = "/usr/share/gocode/src/github.com/Masterminds/sprig";
    are_installed(&["go"])
        && (Path::new(LIBRARY).is_dir() || skip("sprig, a library of Go's, is not installed"))
}

/// Renders a manifest or a chart to its objects.
async fn render(source: &str, values: &str) -> Result<Vec<Value>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = tempfile::NamedTempFile::new().unwrap();

    std::fs::write(file.path(), values).unwrap();
    let mut command = Command::new("go");

    command
        .env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .env("GOFLAGS", "");
    command
        .arg("run")
        .arg(root.join("tests/operations/helm/render.go"))
        .arg(root.join(source));

    if Path::new(source).extension().is_none() {
        command.arg(file.path());
    }

    let output = command.output().await.expect("go runs");
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).expect("JSON")),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

async fn rendered(source: &str, values: &str) -> Vec<Value> {
    render(source, values)
        .await
        .unwrap_or_else(|error| panic!("{source}: {error}"))
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .collect();
    assert_eq!(found.len(), 1, "{kind}");

    found[0]
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A pod's files and user, as a kubelet prepares them.
struct Pod {
    directory: tempfile::TempDir,
    /// Prefixes of paths in the pod, and their directories on this machine.
    mounts: Vec<(String, PathBuf)>,
    user: u32,
    group: u32,
    environment: BTreeMap<String, String>,
    arguments: Vec<Vec<String>>,
}

impl Pod {
    /// `secrets` replace the values of the objects under these keys.
    fn make(objects: &[Value], secrets: &[(&str, &str)]) -> Pod {
        let pod = &of_kind(objects, "Deployment")["spec"]["template"]["spec"];
        let security = &pod["securityContext"];
        let number = |name: &str| {
            security[name]
                .as_u64()
                .map(|number| u32::try_from(number).unwrap())
        };

        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();

        let container = &pod["containers"][0];
        let mut mounts = Vec::new();

        for volume in items(&pod["volumes"]) {
            let name = volume["name"].as_str().unwrap();
            let path = directory.path().join(name);

            std::fs::create_dir(&path).unwrap();

            let (files, mode) = match volume["secret"].is_object() {
                true => (
                    &of_kind(objects, "Secret")["stringData"],
                    volume["secret"]["defaultMode"].as_u64(),
                ),
                false => (
                    &of_kind(objects, "ConfigMap")["data"],
                    volume["configMap"]["defaultMode"].as_u64(),
                ),
            };

            for (key, value) in files.as_object().unwrap() {
                let replaced = secrets
                    .iter()
                    .find(|(name, _)| name == key)
                    .map(|(_, value)| *value);
                let file = path.join(key);

                std::fs::write(&file, replaced.unwrap_or(value.as_str().unwrap())).unwrap();
                let mode = u32::try_from(mode.unwrap_or(0o644)).unwrap();

                // Volumes are readable by fsGroup; without it, only by root.
                let mode = if number("fsGroup").is_some() {
                    mode | 0o440
                } else {
                    mode
                };

                std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
                chown(&file, Some(0), Some(number("fsGroup").unwrap_or(0))).unwrap();
            }

            let mounted = items(&container["volumeMounts"])
                .find(|mount| mount["name"] == name)
                .unwrap();
            mounts.push((mounted["mountPath"].as_str().unwrap().to_owned(), path));
        }

        let local = |text: &str| {
            mounts
                .iter()
                .fold(text.to_owned(), |text, (mounted, path)| {
                    text.replace(mounted, path.to_str().unwrap())
                })
        };

        let variable = |entry: &Value| {
            let name = entry["name"].as_str().unwrap().to_owned();
            let of_secret = entry["valueFrom"]["secretKeyRef"]["key"].as_str();
            let value = match of_secret {
                Some(key) => secrets.iter().find(|(name, _)| *name == key).unwrap().1,
                None => entry["value"].as_str().unwrap(),
            };
            (name, local(value))
        };

        let environment = items(&container["env"]).map(variable).collect();
        let containers = items(&pod["initContainers"]).chain(items(&pod["containers"]));
        let arguments = containers.map(|c| {
            items(&c["args"])
                .map(|arg| local(arg.as_str().unwrap()))
                .collect()
        });

        let arguments = arguments.collect();
        let user = number("runAsUser").unwrap();
        let group = number("runAsGroup").unwrap_or(65_532);

        Pod {
            directory,
            mounts,
            user,
            group,
            environment,
            arguments,
        }
    }

    /// Builds a command for the binary with these arguments, as the pod's user and with only the
    /// pod's environment.
    fn command(&self, arguments: &[String]) -> Command {
        let program = self.directory.path().join("walhook");
        if !program.exists() {
            // By a process of its own: processes that parallel tests start at this moment would
            // inherit a file that this one writes, and a file that is open for writing cannot be
            // run.
            let copied = std::process::Command::new("cp")
                .args([env!("CARGO_BIN_EXE_walhook").as_ref(), program.as_os_str()])
                .status();
            assert!(copied.unwrap().success());
        }

        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(&self.environment)
            .kill_on_drop(true);
        command.uid(self.user).gid(self.group);

        command
    }

    async fn run(&self, arguments: &[String]) -> String {
        let output = self.command(arguments).output().await.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn is_root() -> bool {
    rustix::process::getuid().is_root() || skip("only root can run a process as another user")
}

#[tokio::test]
async fn pods_can_read_their_secrets_and_become_ready() {
    if !can_render() || !is_root() {
        return;
    }

    for source in [MANIFEST, CHART] {
        // The manifests use the default slot, which other tests on a shared server may use too.
        let app = TestApp::prepare_alone(Options::default()).await;
        let objects = rendered(source, MINIMUM).await;
        let secrets = [
            ("source-url", &*app.source_url),
            ("store-url", &*app.store_url),
            ("master-key", MASTER_KEY),
        ];
        let pod = Pod::make(&objects, &secrets);
        let [setup, run] = &pod.arguments[..] else {
            panic!("{source}: setup and run are expected")
        };

        pod.run(setup).await;
        let mut sidecar = Sidecar::spawn(pod.command(run), &app.log_file());

        sidecar.wait_until_ready().await;
        sidecar.stop().await;

        app.walhook_ok(&[
            "teardown",
            "--yes",
            "--set",
            "source.slot=walhook",
            "--set",
            "source.publication=walhook",
        ])
        .await;
    }
}

/// An installation for the log, one for a cell and one for the API of all cells.
#[tokio::test]
async fn a_log_a_cell_and_the_api_run_with_the_values_of_the_guide() {
    const GUIDE: &str = include_str!("../../docs/cells.md");
    if !can_render() || !is_root() {
        return;
    }

    let app = TestApp::prepare_alone(Options::default()).await;
    app.server.create_database("cell").await.unwrap();
    let of_cell = app.server.url("cell");
    let secrets = [
        ("source-url", &*app.source_url),
        ("log-url", &app.store_url),
        ("master-key", MASTER_KEY),
        ("a", &of_cell),
    ];

    let mut sidecars = Vec::new();
    for (block, store) in GUIDE
        .split("```yaml\n")
        .skip(1)
        .zip([&app.store_url, &of_cell, ""])
    {
        let values = block.split("```").next().unwrap();
        let objects = rendered(CHART, values).await;
        let pod = Pod::make(&objects, &[&secrets[..], &[("store-url", store)]].concat());
        let (run, prepare) = pod.arguments.split_last().unwrap();
        let settings = &run[..2];

        for setup in prepare {
            pod.run(setup).await;
        }

        if values.contains("cells: { name: a }") {
            let add = ["cells", "add", "a"].map(str::to_owned);
            pod.run(&[settings, &add].concat()).await;
        }

        let mut sidecar = Sidecar::spawn(pod.command(run), &app.log_file());
        sidecar.wait_until_ready().await;
        sidecars.push((sidecar, pod));
    }

    assert_eq!(sidecars.len(), 3);
    for (sidecar, _) in sidecars {
        sidecar.stop().await;
    }
}

/// The services of the Compose file, with this machine's databases.
#[tokio::test]
async fn the_services_of_compose_with_cells_run_with_their_settings() {
    if !can_render() {
        return;
    }

    let app = TestApp::prepare_alone(Options::default()).await;
    app.server.create_database("cell").await.unwrap();
    let of_cell = app.server.url("cell");
    let databases = [
        ("postgres:platform@postgres/platform", &app.source_url),
        ("postgres:platform@postgres/walhook", &of_cell),
        ("postgres:platform@log,log-standby/walhook", &app.store_url),
    ];

    let file = rendered("deploy/compose/cells.yaml", "").await;
    let services = file[0]["services"].as_object().unwrap();
    let own = services.values().filter(|one| one["image"] == "walhook");
    let names = ["relay-setup", "relay", "a-setup", "a-add", "a", "api"];
    assert_eq!(own.count(), names.len());
    let mut sidecars = Vec::new();

    for name in names {
        let service = &services[name];
        let arguments = items(&service["command"]).map(|one| one.as_str().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_walhook"));
        command.args(arguments).env_clear().kill_on_drop(true);

        for (variable, value) in service["environment"].as_object().unwrap() {
            let value = value.as_str().unwrap().to_owned();
            let value = databases.iter().fold(value, |value, (theirs, ours)| {
                value.replace(theirs, ours.trim_start_matches("postgres://"))
            });
            command.env(variable, value);
        }

        if service["restart"].is_string() {
            let mut sidecar = Sidecar::spawn(command, &app.log_file());
            sidecar.wait_until_ready().await;
            sidecars.push(sidecar);
        } else {
            let output = command.output().await.unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}: {errors}");
        }
    }

    for sidecar in sidecars {
        sidecar.stop().await;
    }
}

#[tokio::test]
async fn every_secret_setting_is_a_file_of_the_secret_and_nowhere_else() {
    if !can_render() {
        return;
    }

    let given = SECRETS.map(|(_, _, value)| format!("  {value}: hidden-{value}\n"));
    let objects = rendered(CHART, &format!("secrets:\n{}", given.concat())).await;
    let secret = of_kind(&objects, "Secret");
    let deployment = of_kind(&objects, "Deployment");
    let open: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] != "Secret")
        .collect();

    assert!(
        !serde_json::to_string(&open).unwrap().contains("hidden-"),
        "{open:?}"
    );

    for container in ["initContainers", "containers"] {
        let environment = &deployment["spec"]["template"]["spec"][container][0]["env"];

        for (setting, variable, value) in SECRETS {
            let entry = items(environment).find(|entry| entry["name"] == variable);
            let path =
                entry.unwrap_or_else(|| panic!("{container}: {variable} is missing"))["value"]
                    .as_str()
                    .unwrap();
            let key = path.strip_prefix("/run/secrets/walhook/").unwrap();

            assert_eq!(
                secret["stringData"][key],
                format!("hidden-{value}"),
                "{setting}"
            );
        }
    }

    let existing = "existingSecret: mine\nexistingSecretKeys: [smtp-url, jwt-secret]";
    let objects = rendered(CHART, existing).await;

    assert!(!objects.iter().any(|object| object["kind"] == "Secret"));
    let text = of_kind(&objects, "Deployment").to_string();

    for (name, is_named) in [
        ("MAIL__SMTP_URL", true),
        ("AUTH__JWT__SECRET", true),
        ("DELIVERY__PROXY", false),
    ] {
        assert_eq!(
            text.contains(&format!("WALHOOK_{name}_FILE")),
            is_named,
            "{name}"
        );
    }

    for (setting, _, _) in SECRETS {
        let (section, key) = setting.rsplit_once('.').unwrap();
        let nested = section
            .rsplit('.')
            .fold(format!("{key}: hunter2"), |inner, part| {
                format!("{part}: {{ {inner} }}")
            });

        let error = render(CHART, &format!("{MINIMUM}\nsettings: {{ {nested} }}"))
            .await
            .unwrap_err();
        assert!(
            error.contains(&format!("settings.{setting} is a secret")),
            "{error}"
        );
    }
}

/// In TOML, `[auth.jwt]` and `jwt.secret` are nested tables, which the chart would not compare with
/// the secret settings.
#[tokio::test]
async fn names_of_settings_that_toml_would_nest_are_refused() {
    if !can_render() {
        return;
    }

    let cases = [
        ("auth.jwt: { secret: hunter2 }", "auth.jwt"),
        ("auth: { jwt.secret: hunter2 }", "jwt.secret"),
        ("'\"mail\"': { smtp_url: hunter2 }", "mail"),
        ("mail: { '\"smtp_url\"': hunter2 }", "smtp_url"),
    ];
    for (settings, name) in cases {
        let error = render(CHART, &format!("{MINIMUM}\nsettings: {{ {settings} }}"))
            .await
            .unwrap_err();
        let message =
            format!("the name {name:?} must consist of letters, digits, _ and -. Nest sections");
        assert!(
            error.replace("\\\"", "").contains(&message) && !error.contains("hunter2"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn settings_variables_and_files_reach_the_process() {
    if !can_render() || !is_root() {
        return;
    }

    let values = format!(
        "{MINIMUM}
settings:
  shutdown: {{ delay: 3s }}
  delivery: {{ concurrency: 512, allow_http: true, allow_networks: [10.1.0.0/16], extra_ca_file: /etc/walhook-ca/ca.pem }}
  source: {{ tables: {{ distro_queue: {{ table: jobs, values: {{ status: {{ '5': complete }} }} }} }} }}
extraEnv: [{{ name: WALHOOK_LOG__FORMAT, value: json }}]
extraVolumes: [{{ name: ca, configMap: {{ name: authorities }} }}]
extraVolumeMounts: [{{ name: ca, mountPath: /etc/walhook-ca, readOnly: true }}]"
    );

    let mut objects = rendered(CHART, &values).await;
    let pod = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"];

    assert!(
        items(&pod["volumes"]).any(|volume| volume["configMap"]["name"] == "authorities"),
        "{pod}"
    );

    for container in ["initContainers", "containers"] {
        let mounts = &pod[container][0]["volumeMounts"];
        assert!(
            items(mounts).any(|mount| mount["mountPath"] == "/etc/walhook-ca"),
            "{mounts}"
        );
    }

    // Additional volumes do not exist on this machine.
    let spec = objects
        .iter_mut()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    let volumes = spec["spec"]["template"]["spec"]["volumes"]
        .as_array_mut()
        .unwrap();

    volumes.retain(|volume| volume["name"] != "ca");
    let pod = Pod::make(&objects, &[("master-key", MASTER_KEY)]);
    let settings = &pod.arguments[0][1];

    assert!(
        pod.mounts
            .iter()
            .any(|(_, path)| settings.starts_with(path.to_str().unwrap())),
        "{settings}"
    );

    let config = pod
        .run(&["--config".to_owned(), settings.clone(), "config".to_owned()])
        .await;

    for expected in [
        "delay = \"3s\"",
        "concurrency = 512",
        "allow_http = true",
        "allow_networks = [\"10.1.0.0/16\"]",
        "table = \"jobs\"",
        "5 = \"complete\"",
        "format = \"json\"",
        "/etc/walhook-ca/ca.pem",
    ] {
        assert!(config.contains(expected), "{expected} in:\n{config}");
    }
}

/// Whether a policy allows a pod to connect.
fn allows_egress(policy: &Value, ip: IpAddr, port: u64) -> bool {
    let contains = |network: &Value| {
        network
            .as_str()
            .unwrap()
            .parse::<IpNet>()
            .unwrap()
            .contains(&ip)
    };

    let is_peer = |peer: &Value| {
        let block = &peer["ipBlock"];
        block.is_object() && contains(&block["cidr"]) && !items(&block["except"]).any(contains)
    };

    let is_port = |found: &Value| {
        let first = found["port"].as_u64().unwrap();
        found["protocol"]
            .as_str()
            .is_none_or(|protocol| protocol == "TCP")
            && (first..=found["endPort"].as_u64().unwrap_or(first)).contains(&port)
    };

    items(&policy["spec"]["egress"]).any(|rule| {
        items(&rule["to"]).any(is_peer)
            && (rule["ports"].is_null() || items(&rule["ports"]).any(is_port))
    })
}

#[tokio::test]
async fn the_chart_installs_the_shipped_rules_and_dashboard_and_an_ingress() {
    if !can_render() {
        return;
    }

    let plain = rendered(CHART, MINIMUM).await;
    let kinds: Vec<&str> = plain
        .iter()
        .filter_map(|one| one["kind"].as_str())
        .collect();
    for kind in ["Ingress", "PrometheusRule", "ServiceMonitor"] {
        assert!(!kinds.contains(&kind), "{kinds:?}");
    }

    let values = format!(
        "{MINIMUM}
ingress: {{ enabled: true, className: nginx, hosts: [hooks.example], tlsSecret: cert }}
serviceMonitor: {{ enabled: true }}
prometheusRule: {{ enabled: true, labels: {{ release: stack }} }}
dashboard: {{ enabled: true }}"
    );
    let objects = rendered(CHART, &values).await;
    let rule = of_kind(&objects, "PrometheusRule");
    let shipped = rendered(RULES, "").await;

    assert_eq!(rule["spec"], shipped[0]);
    assert_eq!(rule["metadata"]["labels"]["release"], "stack");

    let is_dashboard = |one: &&Value| one["metadata"]["labels"]["grafana_dashboard"] == "1";
    let dashboard = objects.iter().find(is_dashboard).unwrap();
    let dashboard = dashboard["data"]["walhook.json"].as_str().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join(DASHBOARD);
    assert_eq!(dashboard, std::fs::read_to_string(shipped).unwrap());

    let spec = &of_kind(&objects, "Ingress")["spec"];
    let service = of_kind(&objects, "Service");
    let path = &spec["rules"][0]["http"]["paths"][0];
    let backend = &path["backend"]["service"];

    assert_eq!(spec["rules"][0]["host"], "hooks.example");
    assert_eq!(spec["tls"][0]["hosts"][0], "hooks.example");
    assert_eq!(
        (&path["path"], &path["pathType"]),
        (&"/".into(), &"Prefix".into())
    );
    assert_eq!(backend["name"], service["metadata"]["name"]);
    let mut ports = items(&service["spec"]["ports"]);
    assert!(ports.any(|port| port["name"] == backend["port"]["name"]));

    let notes = of_kind(&objects, "Notes")["text"].as_str().unwrap();
    assert!(notes.contains("https://hooks.example/ui"), "{notes}");
    assert!(
        of_kind(&plain, "Notes")["text"]
            .as_str()
            .unwrap()
            .contains("port-forward")
    );

    let nowhere = format!("{MINIMUM}\ningress: {{ enabled: true }}");
    let error = render(CHART, &nowhere).await.unwrap_err();
    assert!(error.contains("ingress.hosts"), "{error}");
}

/// Returns the address. An IPv4 address also as NAT64 and 6to4 embed it.
fn in_every_form(address: IpAddr) -> Vec<IpAddr> {
    let IpAddr::V4(ip) = address else {
        return vec![address];
    };

    let [a, b, c, d] = ip.octets();
    let high = u16::from_be_bytes([a, b]);
    let low = u16::from_be_bytes([c, d]);
    let nat64 = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low);

    vec![
        address,
        nat64.into(),
        Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1).into(),
    ]
}

/// Receivers may listen on any port. The guard checks addresses when a webhook is saved and at each
/// connection.
#[tokio::test]
async fn the_network_policy_allows_what_the_api_accepts() {
    if !can_render() {
        return;
    }

    let values = format!(
        "{MINIMUM}
settings: {{ delivery: {{ allow_networks: [10.9.0.0/16, 'fd00:9::/32'] }} }}
networkPolicy: {{ databases: [10.2.0.0/16], databasePort: 6432, extraEgress: [{{ to: [{{ ipBlock: {{ cidr: 10.3.0.1/32 }} }}], ports: [{{ port: 3128 }}] }}] }}"
    );
    let chart = rendered(CHART, &values).await;
    let plain = rendered(CHART, MINIMUM).await;
    let manifest = rendered(MANIFEST, "").await;
    let guard = Guard::new(true, Vec::new());

    let addresses = [
        "8.8.8.8",
        "93.184.216.34",
        "0.1.2.3",
        "10.4.0.1",
        "11.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.32.0.1",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "192.88.100.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "223.255.255.1",
        "224.0.0.1",
        "240.0.0.1",
        "2606:4700::1111",
        "2001:db8::1",
        "3fff::1",
        "::1",
        "fd00::1",
        "fe80::1",
        "64:ff9b:1::1",
        "2003::1",
    ];

    let addresses: Vec<IpAddr> = addresses
        .iter()
        .flat_map(|address| in_every_form(address.parse().unwrap()))
        .collect();

    for objects in [&chart, &plain, &manifest] {
        let policy = of_kind(objects, "NetworkPolicy");

        for address in addresses.iter().copied() {
            for port in [80, 443, 8443, 65_535] {
                assert_eq!(
                    allows_egress(policy, address, port),
                    guard.allows(address),
                    "{address} port {port}"
                );
            }
        }
    }

    let policy = of_kind(&chart, "NetworkPolicy");
    let wanted = [
        ("10.9.1.1", 8080, true),
        ("fd00:9::1", 443, true),
        ("10.2.0.1", 6432, true),
        ("10.3.0.1", 3128, true),
    ];

    let unwanted = [
        ("10.2.0.1", 443, false),
        ("10.3.0.1", 443, false),
        ("10.8.0.1", 443, false),
    ];
    for (address, port, allowed) in wanted.into_iter().chain(unwanted) {
        assert_eq!(
            allows_egress(policy, address.parse().unwrap(), port),
            allowed,
            "{address} port {port}"
        );
    }
}
