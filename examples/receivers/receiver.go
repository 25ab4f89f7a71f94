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
	maxBodyBytes = 256 * 1024 // Deliveries have at most 64 KB by default.
	tolerance    = 5 * time.Minute
)

var (
	// The webhook's secret, or its ed25519 public key (whpk_…). Several, separated by spaces, while one replaces another.
	keys = strings.Fields(os.Getenv("KEYS"))
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

func matches(key, version string, signature, content []byte) bool {
	kind, encoded, _ := strings.Cut(key, "_")
	decoded, err := base64.StdEncoding.DecodeString(encoded)
	switch {
	case err != nil:
		return false
	case version == "v1" && kind == "whsec":
		mac := hmac.New(sha256.New, decoded)
		mac.Write(content)
		return hmac.Equal(mac.Sum(nil), signature)
	case version == "v1a" && kind == "whpk" && len(decoded) == ed25519.PublicKeySize:
		return ed25519.Verify(decoded, content, signature)
	}
	return false
}

// isSigned reports whether one of the signatures is genuine. body is the raw body.
func isSigned(headers http.Header, body []byte) bool {
	content := append([]byte(headers.Get("webhook-id")+"."+headers.Get("webhook-timestamp")+"."), body...)
	for _, entry := range strings.Split(headers.Get("webhook-signature"), " ") {
		version, text, _ := strings.Cut(entry, ",")
		signature, err := base64.StdEncoding.DecodeString(text)
		for _, key := range keys {
			if err == nil && matches(key, version, signature, content) {
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
	log.Fatal(http.ListenAndServe("127.0.0.1:"+setting("PORT", "9000"), http.HandlerFunc(receive)))
}
