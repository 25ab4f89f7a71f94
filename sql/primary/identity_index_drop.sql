drop index if exists {index};
