create database walhook;
