//! Files that hold credentials.

use super::{Place, cache, config, data, folder, home, machine, named, repository, runtime};
use crate::cli::doctor::exposure::findings::Kind;

/// What has to be seen before a file or folder is called a credential. Every file has to be a regular
/// one that this user can read and that isn't empty.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli::doctor::exposure) enum Proof {
    /// The place is a folder with an entry of this name; the folder is reported, once.
    Entry(&'static str),
    /// One of these texts is in it, in lower case.
    Holds(&'static [&'static str]),
    /// Being there is enough.
    Presence,
    /// It begins as a private key does.
    PrivateKey,
    /// A line gives a value to a name that sounds like a secret.
    SecretLine,
    /// It is JSON, and hands a secret to one of the servers of an agent (`mcpServers`).
    ServerSecret,
    /// It holds an address with a user and a password.
    UrlWithPassword,
}

/// A kind of credential file.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli::doctor::exposure) struct Credential {
    pub(in crate::cli::doctor::exposure) kind: Kind,
    pub(in crate::cli::doctor::exposure) proof: Proof,
    pub(in crate::cli::doctor::exposure) places: &'static [Place],
}

const fn row(
    name: &'static str,
    what: &'static str,
    why: &'static str,
    proof: Proof,
    places: &'static [Place],
) -> Credential {
    Credential { kind: Kind::new(name, what, why), proof, places }
}

use Proof::{Entry, Holds, Presence, PrivateKey, SecretLine, ServerSecret, UrlWithPassword};

/// Every kind, in the order of the page: keys, clouds, registries, code hosts, agents, the rest.
#[rustfmt::skip]
pub(in crate::cli::doctor::exposure) const TABLE: &[Credential] = &[
    row("ssh-private-key", "SSH private key", "logs in as you wherever it is accepted", PrivateKey,
        &[home(".ssh/*")]),
    row("gpg-private-key", "GnuPG private keys", "signs and decrypts as you", Entry("*.key"),
        &[home(".gnupg/private-keys-v1.d"), named("GNUPGHOME", "private-keys-v1.d")]),
    row("gpg-secret-ring", "GnuPG private keys, old form", "signs and decrypts as you", Presence,
        &[home(".gnupg/secring.gpg"), named("GNUPGHOME", "secring.gpg")]),
    row("age-key", "age or SOPS key", "decrypts the team's secrets", Holds(&["age-secret-key-"]),
        &[config("sops/age/keys.txt"), config("age/*"), home(".age/*"), named("SOPS_AGE_KEY_FILE", "")]),
    row("wireguard-key", "WireGuard configuration", "joins the private network as you", Holds(&["privatekey"]),
        &[home(".wireguard/*.conf"), config("wireguard/*.conf"), home("*.conf"), machine("etc/wireguard/*.conf")]),
    row("openvpn-key", "OpenVPN configuration", "joins the private network as you",
        Holds(&["private key-----", "auth-user-pass", "pkcs12"]),
        &[home("*.ovpn"), config("openvpn/*"), home(".openvpn/*"), machine("etc/openvpn/*.conf"), machine("etc/openvpn/client/*.conf")]),

    row("aws-credentials", "AWS keys", "acts as you in AWS", Holds(&["aws_secret_access_key", "aws_session_token"]),
        &[home(".aws/credentials"), home(".aws/config"), named("AWS_SHARED_CREDENTIALS_FILE", ""), named("AWS_CONFIG_FILE", "")]),
    row("aws-session", "AWS session tokens", "acts as you in AWS until they expire", Entry("*.json"),
        &[home(".aws/sso/cache"), home(".aws/cli/cache")]),
    row("gcloud-default", "Google Cloud default credentials", "acts as you in Google Cloud",
        Holds(&["refresh_token", "private_key", "client_secret"]),
        &[config("gcloud/application_default_credentials.json"), named("CLOUDSDK_CONFIG", "application_default_credentials.json"), named("GOOGLE_APPLICATION_CREDENTIALS", "")]),
    row("gcloud-credentials", "Google Cloud logins", "acts as you in Google Cloud", Presence,
        &[config("gcloud/credentials.db"), config("gcloud/access_tokens.db"), named("CLOUDSDK_CONFIG", "credentials.db"), named("CLOUDSDK_CONFIG", "access_tokens.db")]),
    row("azure-credentials", "Azure logins", "acts as you in Azure", Presence,
        &[home(".azure/msal_token_cache.json"), home(".azure/msal_token_cache.bin"), home(".azure/accessTokens.json"), home(".azure/service_principal_entries.json"), named("AZURE_CONFIG_DIR", "msal_token_cache.json")]),
    row("kubernetes-config", "Kubernetes logins", "commands your clusters",
        Holds(&["token:", "client-key-data", "client-key:", "password:", "exec:", "auth-provider:"]),
        &[home(".kube/config"), named("KUBECONFIG", ""), machine("etc/rancher/k3s/k3s.yaml"), machine("etc/kubernetes/admin.conf")]),
    row("oci-config", "Oracle Cloud keys", "acts as you in Oracle Cloud", Holds(&["key_file", "pass_phrase"]), &[home(".oci/config")]),
    row("digitalocean-token", "DigitalOcean token", "acts as you in DigitalOcean", Holds(&["access-token:"]), &[config("doctl/config.yaml")]),
    row("hetzner-token", "Hetzner Cloud token", "acts as you in Hetzner Cloud", Holds(&["token"]), &[config("hcloud/cli.toml")]),
    row("databricks-token", "Databricks token", "acts as you in Databricks", Holds(&["token", "client_secret", "password"]), &[home(".databrickscfg"), named("DATABRICKS_CONFIG_FILE", "")]),
    row("fly-token", "Fly.io token", "deploys as you", Holds(&["access_token"]), &[home(".fly/config.yml")]),
    row("heroku-token", "Heroku token", "deploys as you", Holds(&["token", "password"]), &[data("heroku/config.json"), home(".heroku/credentials")]),
    row("netlify-token", "Netlify token", "deploys as you", Holds(&["\"token\""]), &[config("netlify/config.json"), home(".netlify/config.json")]),
    row("vercel-token", "Vercel token", "deploys as you", Holds(&["\"token\""]),
        &[data("com.vercel.cli/auth.json"), config("vercel/auth.json"), home(".vercel/auth.json")]),
    row("wrangler-token", "Cloudflare token", "deploys as you", Holds(&["oauth_token", "api_token", "refresh_token"]),
        &[config(".wrangler/config/default.toml"), home(".wrangler/config/default.toml"), home(".wrangler/config/*.toml")]),
    row("terraform-token", "Terraform token", "changes your infrastructure", Holds(&["token"]),
        &[home(".terraform.d/credentials.tfrc.json"), home(".terraformrc"), named("TF_CLI_CONFIG_FILE", "")]),
    row("pulumi-token", "Pulumi token", "changes your infrastructure", Holds(&["accesstoken"]), &[home(".pulumi/credentials.json")]),
    row("vault-token", "Vault token", "reads what you may read in Vault", Presence, &[home(".vault-token")]),
    row("cloud-init-data", "cloud-init user data", "often holds the machine's own secrets", Presence,
        &[machine("var/lib/cloud/instance/user-data.txt")]),

    row("docker-config", "container registry logins", "pulls and pushes images as you", Holds(&["\"auth\"", "\"identitytoken\"", "\"registrytoken\""]),
        &[home(".docker/config.json"), named("DOCKER_CONFIG", "config.json"), config("containers/auth.json"), runtime("containers/auth.json"), named("REGISTRY_AUTH_FILE", "")]),
    row("npm-token", "npm token", "publishes packages as you", Holds(&["_authtoken", "_password", "_auth="]),
        &[home(".npmrc"), named("NPM_CONFIG_USERCONFIG", ""), folder(".npmrc")]),
    row("yarn-token", "Yarn token", "publishes packages as you", Holds(&["npmauthtoken", "npmauthident"]), &[home(".yarnrc.yml"), folder(".yarnrc.yml")]),
    row("pypi-token", "Python package index login", "publishes packages as you", Holds(&["password"]), &[home(".pypirc")]),
    row("pip-password", "package index address with a password", "reads your private packages", UrlWithPassword,
        &[config("pip/pip.conf"), home(".pip/pip.conf"), named("PIP_CONFIG_FILE", ""), config("uv/uv.toml"), machine("etc/pip.conf")]),
    row("cargo-token", "crate registry token", "publishes crates as you", Holds(&["token"]),
        &[home(".cargo/credentials.toml"), home(".cargo/credentials"), named("CARGO_HOME", "credentials.toml"), named("CARGO_HOME", "credentials")]),
    row("gem-token", "RubyGems key", "publishes gems as you", Holds(&["api_key", "rubygems"]), &[home(".gem/credentials"), data("gem/credentials")]),
    row("composer-token", "Composer login", "reads your private packages", Holds(&["oauth", "password", "token", "bearer"]),
        &[home(".composer/auth.json"), config("composer/auth.json"), named("COMPOSER_HOME", "auth.json")]),
    row("maven-password", "Maven passwords", "publishes artefacts as you", Holds(&["<password>"]), &[home(".m2/settings.xml")]),
    row("gradle-secret", "Gradle properties with secrets", "publishes artefacts as you", SecretLine, &[home(".gradle/gradle.properties")]),
    row("nuget-key", "NuGet passwords", "publishes packages as you", Holds(&["password", "apikeys"]), &[home(".nuget/NuGet/NuGet.Config")]),

    row("git-credentials", "Git passwords", "pushes code as you", UrlWithPassword, &[home(".git-credentials"), config("git/credentials")]),
    row("git-config-secret", "Git configuration with a token", "pushes code as you", Holds(&["extraheader = authorization", "extraheader=authorization"]),
        &[home(".gitconfig"), config("git/config"), repository("config"), machine("etc/gitconfig")]),
    row("git-config-password", "Git address with a password", "pushes code as you", UrlWithPassword,
        &[home(".gitconfig"), config("git/config"), repository("config"), machine("etc/gitconfig")]),
    row("github-cli", "GitHub CLI token", "acts as you on GitHub", Holds(&["oauth_token"]), &[config("gh/hosts.yml"), named("GH_CONFIG_DIR", "hosts.yml")]),
    row("gitlab-cli", "GitLab CLI token", "acts as you on GitLab", Holds(&["token"]), &[config("glab-cli/config.yml")]),
    row("hub-token", "hub token", "acts as you on GitHub", Holds(&["oauth_token"]), &[config("hub")]),
    row("netrc", "passwords by host", "logs in as you at each of its hosts", Holds(&["password"]), &[home(".netrc"), named("NETRC", "")]),

    row("huggingface-token", "Hugging Face token", "acts as you on Hugging Face", Presence,
        &[cache("huggingface/token"), home(".huggingface/token"), named("HF_HOME", "token"), named("HF_TOKEN_PATH", "")]),
    row("kaggle-key", "Kaggle key", "acts as you on Kaggle", Holds(&["\"key\""]), &[home(".kaggle/kaggle.json")]),
    row("openai-key", "OpenAI key", "spends your OpenAI budget", Holds(&["sk-", "api_key"]), &[home(".openai/*"), config("openai/*")]),
    row("anthropic-key", "Anthropic key", "spends your Anthropic budget", Holds(&["sk-ant-", "api_key"]), &[home(".anthropic/*"), config("anthropic/*")]),
    row("claude-login", "Claude login", "acts as you with your agent's account", Holds(&["token", "apikey"]),
        &[home(".claude/.credentials.json"), named("CLAUDE_CONFIG_DIR", ".credentials.json")]),
    row("claude-state", "Claude settings with a key", "acts as you with your agent's account", Holds(&["primaryapikey", "sk-ant-"]), &[home(".claude.json")]),
    row("codex-login", "Codex login", "acts as you with your agent's account", Holds(&["token", "api_key"]), &[home(".codex/auth.json"), named("CODEX_HOME", "auth.json")]),
    row("gemini-login", "Gemini login", "acts as you with your agent's account", Presence,
        &[home(".gemini/oauth_creds.json"), home(".gemini/.env")]),
    row("cursor-login", "Cursor login", "acts as you with your agent's account", Presence,
        &[config("Cursor/User/globalStorage/state.vscdb"), config("cursor/auth.json"), home(".cursor/auth.json")]),
    row("copilot-login", "Copilot login", "acts as you with your agent's account", Holds(&["oauth_token"]),
        &[config("github-copilot/hosts.json"), config("github-copilot/apps.json")]),
    row("opencode-login", "opencode login", "acts as you with your agent's account", Holds(&["\"key\"", "\"access\"", "\"refresh\""]), &[data("opencode/auth.json")]),
    row("agent-server-key", "agent settings with keys of its servers", "is used as you wherever it is accepted", ServerSecret,
        &[home(".claude.json"), home(".cursor/mcp.json"), home(".gemini/settings.json"), home(".codeium/windsurf/mcp_config.json"), config("Claude/claude_desktop_config.json"), folder(".mcp.json"), folder(".cursor/mcp.json"), folder(".vscode/mcp.json")]),
    row("aider-secret", "aider settings with keys", "spends your model budget", Holds(&["api-key", "api_key"]), &[home(".aider.conf.yml")]),

    row("postgres-password", "PostgreSQL passwords", "opens your databases", Presence, &[home(".pgpass"), named("PGPASSFILE", "")]),
    row("mysql-password", "MySQL password", "opens your databases", Holds(&["password"]), &[home(".my.cnf")]),
    row("mysql-login", "MySQL logins", "opens your databases", Presence, &[home(".mylogin.cnf")]),
    row("rclone-secret", "rclone remotes", "reads and deletes in your cloud storage", Holds(&["pass", "token", "secret", "key"]),
        &[config("rclone/rclone.conf"), home(".rclone.conf"), named("RCLONE_CONFIG", "")]),
    row("s3cmd-key", "s3cmd keys", "reads and deletes in your buckets", Holds(&["secret_key"]), &[home(".s3cfg")]),
    row("minio-key", "MinIO keys", "reads and deletes in your buckets", Holds(&["secretkey"]), &[home(".mc/config.json")]),
    row("restic-password", "restic password", "decrypts your backups", Presence, &[config("restic/password"), named("RESTIC_PASSWORD_FILE", "")]),
    row("env-file", "environment file with secrets", "is your project's own set of secrets", SecretLine,
        &[folder(".env*"), folder("*.env"), home(".env")]),
    row("service-account-key", "key of a cloud's service account", "acts as that account", PrivateKey,
        &[folder("service-account*.json"), folder("service_account*.json"), folder("serviceAccount*.json"), folder("*credentials*.json"), folder("*-key.json"), folder("gcp*.json"), folder("firebase*.json")]),
    row("project-key", "private key in this folder", "logs in or signs in your project's name", PrivateKey,
        &[folder("*.pem"), folder("*.key"), folder("id_*")]),
    row("shell-secret", "shell start-up file with a secret", "is used as you wherever it is accepted", SecretLine,
        &[home(".bashrc"), home(".bash_profile"), home(".bash_login"), home(".profile"), home(".zshrc"), home(".zshenv"), home(".zprofile"), named("ZDOTDIR", ".zshrc"), named("ZDOTDIR", ".zshenv")]),

    row("firefox-data", "Firefox cookies and logins", "is logged in as you wherever you are", Presence,
        &[home(".mozilla/firefox/*/cookies.sqlite"), home(".mozilla/firefox/*/logins.json"), home("snap/firefox/common/.mozilla/firefox/*/cookies.sqlite")]),
    row("chrome-data", "Chrome or Chromium cookies and logins", "is logged in as you wherever you are", Presence,
        &[config("google-chrome/*/Cookies"), config("google-chrome/*/Network/Cookies"), config("google-chrome/*/Login Data"), config("chromium/*/Cookies"), config("chromium/*/Network/Cookies"), config("chromium/*/Login Data"), config("BraveSoftware/Brave-Browser/*/Cookies"), config("microsoft-edge/*/Cookies")]),
    row("password-store", "password store", "is every password, encrypted; its agent opens it", Entry("*"), &[home(".password-store"), named("PASSWORD_STORE_DIR", "")]),
    row("keyring-file", "desktop keyring", "is every saved password, encrypted", Entry("*"), &[data("keyrings"), data("kwalletd")]),
    row("keepass-database", "KeePass database", "is every password, encrypted", Presence, &[home("*.kdbx"), home("Documents/*.kdbx")]),
    row("x11-cookie", "X11 cookie", "opens your display", Presence, &[home(".Xauthority"), named("XAUTHORITY", "")]),
    row("shell-history", "shell history", "keeps what was typed, passwords among it", Presence,
        &[home(".bash_history"), home(".zsh_history"), home(".histfile"), data("fish/fish_history"), home(".sh_history"), named("HISTFILE", "")]),
    row("tool-history", "history of a database or language shell", "keeps what was typed, passwords among it", Presence,
        &[home(".psql_history"), home(".mysql_history"), home(".python_history"), home(".node_repl_history"), home(".rediscli_history"), home(".sqlite_history")]),

    row("shadow", "password hashes of this machine", "can be cracked elsewhere, every account's", Presence, &[machine("etc/shadow"), machine("etc/gshadow")]),
    row("host-key", "SSH host key", "lets another machine pass for this one", PrivateKey, &[machine("etc/ssh/ssh_host_*_key")]),
    row("tls-private-key", "TLS private key", "lets another machine pass for this one", PrivateKey,
        &[machine("etc/ssl/private/*"), machine("etc/letsencrypt/live/*/privkey.pem")]),
    row("cluster-key", "kubelet or cluster key", "commands this node of the cluster", PrivateKey, &[machine("etc/kubernetes/pki/*.key"), machine("var/lib/kubelet/pki/*.pem")]),
];
