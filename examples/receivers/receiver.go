// A complete receiver for Go, without dependencies. It verifies each delivery, stores it once, and responds before any work is done.
//
//	KEYS="whsec_…" INBOX=inbox PORT=9000 go run receiver.go
package main

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const (
	maxBodyBytes   = 256 * 1024 // Deliveries have at most 64 KB by default.
	tolerance      = 5 * time.Minute
	requestTimeout = 10 * time.Second // A client that has not sent its request by then is disconnected.
)

var (
	// The webhook's secret, or its ed25519 public key (whpk_…). Several, separated by spaces, while one replaces another.
	keys = parseKeys(os.Getenv("KEYS"))
	// One file for each delivery. Another process works on them. A file's name recognises repetitions: keep it for a day, even if empty.
	inbox = setting("INBOX", "inbox")

	deliveryID = regexp.MustCompile("^[0-9a-f-]{36}$")
)

func setting(name, byDefault string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return byDefault
}

type key struct {
	version string
	bytes   []byte
}

// parseKeys ends the process if a key is empty or cut off: others could sign with such a key.
func parseKeys(text string) (keys []key) {
	for index, field := range strings.Fields(text) {
		kind, encoded, _ := strings.Cut(field, "_")
		decoded, err := base64.StdEncoding.DecodeString(encoded)
		switch {
		case err == nil && kind == "whsec" && len(decoded) >= 24 && len(decoded) <= 64:
			keys = append(keys, key{"v1", decoded})
		case err == nil && kind == "whpk" && len(decoded) == ed25519.PublicKeySize:
			keys = append(keys, key{"v1a", decoded})
		default:
			log.Fatalf("KEYS: key %d is neither whsec_ with the base64 of 24 to 64 bytes nor whpk_ with that of 32 bytes", index+1)
		}
	}
	if len(keys) == 0 {
		log.Fatal("KEYS is empty: set it to the webhook's secret")
	}
	return keys
}

func (key key) matches(signature, content []byte) bool {
	if key.version == "v1a" {
		return ed25519.Verify(key.bytes, content, signature)
	}
	mac := hmac.New(sha256.New, key.bytes)
	mac.Write(content)
	return hmac.Equal(mac.Sum(nil), signature)
}

// isSigned reports whether one of the signatures is genuine. body is the raw body.
func isSigned(headers http.Header, body []byte) bool {
	content := append([]byte(headers.Get("webhook-id")+"."+headers.Get("webhook-timestamp")+"."), body...)
	for _, entry := range strings.Split(headers.Get("webhook-signature"), " ") {
		version, text, _ := strings.Cut(entry, ",")
		signature, err := base64.StdEncoding.DecodeString(text)
		for _, key := range keys {
			if err == nil && key.version == version && key.matches(signature, content) {
				return true
			}
		}
	}
	return false
}

// isRecent checks the time in the body, which is signed and differs at each attempt.
func isRecent(body []byte) bool {
	var envelope struct{ Timestamp time.Time }
	err := json.Unmarshal(body, &envelope)
	return err == nil && time.Since(envelope.Timestamp).Abs() <= tolerance
}

// store returns false if the delivery was stored before. The link appears when the file is complete, and only if it does not exist.
func store(id string, body []byte) (bool, error) {
	file, err := os.CreateTemp(inbox, ".")
	if err != nil {
		return false, err
	}
	defer os.Remove(file.Name())
	for _, step := range []func() error{
		func() error { _, err := file.Write(body); return err },
		file.Sync,
		file.Close,
	} {
		if err := step(); err != nil {
			return false, err
		}
	}
	err = os.Link(file.Name(), filepath.Join(inbox, id+".json"))
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

func receive(response http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(response, request.Body, maxBodyBytes))
	if err != nil {
		// Too large, or not received in time.
		response.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	id := request.Header.Get("webhook-id")
	if !deliveryID.MatchString(id) || !isSigned(request.Header, body) || !isRecent(body) {
		response.WriteHeader(http.StatusUnauthorized)
		fmt.Println("rejected")
		return
	}
	isNew, err := store(id, body)
	switch {
	case err != nil:
		// Not stored: the delivery is sent again later.
		response.WriteHeader(http.StatusInternalServerError)
		fmt.Println("failed", err)
	case isNew:
		fmt.Println("accepted", id)
	default:
		fmt.Println("duplicate", id)
	}
}

func main() {
	if err := os.MkdirAll(inbox, 0o755); err != nil {
		log.Fatal(err)
	}
	server := http.Server{
		Addr:        "127.0.0.1:" + setting("PORT", "9000"),
		Handler:     http.HandlerFunc(receive),
		ReadTimeout: requestTimeout,
	}
	log.Fatal(server.ListenAndServe())
}
